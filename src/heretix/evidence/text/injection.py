"""Untrusted text: a screen for instructions in it, and the plain form that a model is shown.

This is a screen and no guarantee. It knows orders by their verbs and objects in some eighty
languages, requests in plain English by what their parts weigh, chat markups, and planted answers,
also where they are encoded, spelt in letters that only look Latin, in digits, apart or backwards;
whoever wants past it will get past it. What protects a measurement is the rest: marked items, a
system line that quoted text is never an instruction, and the canary that shows how far a planted
instruction moves the model. A document that only writes about such attacks is caught too.
"""

from __future__ import annotations

import base64
import binascii
import html
import quopri
import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from importlib import resources
from math import fsum
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from heretix.evidence.text.fold import fold_with_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator


class InjectionKind(StrEnum):
    """Kind of attack that a passage looks like."""

    OVERRIDE = "override"  # Tells the reader to drop its instructions
    ROLE = "role"  # Mimics the marks between system, user and assistant
    ANSWER = "answer"  # Plants the answer, or the key that it is read from
    ADDRESS = "address"  # Speaks to a machine that reads it
    MARKER = "marker"  # Mimics the marks that items stand between
    HIDDEN = "hidden"  # Written in characters that nobody sees


@dataclass(frozen=True, slots=True)
class InjectionFlag:
    """A suspicious passage: `text[start:end]`."""

    kind: InjectionKind
    start: int
    end: int


def _compile_cues(cues: str, *parts: str) -> tuple[tuple[str, ...], re.Pattern[str]]:
    """A pattern for lower case, tried only on texts that hold one of the words it can't do without.
    Most texts hold none, and looking for plain words is a hundred times as fast."""
    return tuple(cues.split(",")), re.compile("|".join(f"(?:{part})" for part in parts))


# Rules and guidelines are left out: medicine is full of people who ignore earlier ones.
_ORDERS: Final = r"(?:instruction|prompt|directive|direction|command)s?\b"
_MACHINE: Final = (
    r"(?:an? )?(?:ai|llm|gpt|a\.i\.|large language model|language model|chatbot"
    r"|ai (?:model|assistant|system|agent))s?\b"
)

_NOT_PEOPLE: Final = (
    r"(?! (?:communit|research|engineer|expert|scientist|compan|start|develop|user|enthusias"
    r"|student"
    r"|vendor|skeptic|sceptic|professional|practition|field|team|lab|firm|maker|writer|fan)|-)"
)
"""Behind a machine's name: those who build, study or use it aren't spoken to as one."""
_READER: Final = r"(?:ai|model|assistant|llm|agent|evaluator|chatbot)s?\b"
_NAMED: Final = r"(?:chatgpt|gpt-?\d\w*|claude|gemini|copilot|grok|deepseek)"
_BRIEF: Final = (
    r"(?:tasks?|jobs?|guidance|guidelines|instructions?|orders|prompt|brief|restrictions"
    r"|directives|goal)"
)
_TOLD: Final = (
    r"you (?:were|are|have been|had been)(?: \w+){0,2} (?:told|given|asked|instructed|taught)"
    r"|(?:rules|guidance|instructions?|orders|tasks?) (?:that )?you (?:were|have|had|got|received)"
    r"|(?:operator|developer|system prompt|your creators?) (?:asked|said|told|wants?|instructed)"
)
_OVER: Final = (
    r"(?:void|revoked|suspended|cancell?ed|rescinded|superseded|nullified|overruled|withdrawn"
    r"|no longer (?:appl|valid|count|hold|bind)\w*|do(?:es)? not (?:count|apply)"
    r"|(?:has|have) changed)"
)
_MUST: Final = (
    r"(?:must|should|shall|will|have to|ought to|are (?:required|instructed|obliged|told"
    r"|ordered) to)"
)
_SETTLED: Final = (
    r"(?:true|false|certain|proven|refuted|correct|incorrect|settled|established|impossible)\b"
)
_NUMBER: Final = (
    r"(?:[01]?\.\d+|[01]\b|(?:9\d|100|0|[1-5]) ?(?:%|percent|out of)|ninety|a hundred|one hundred"
    r"|zero)"
)
_POINTED: Final = r"(?<![\d.,])[01][.,]\d{1,3}(?![\d.,]*\s*%)(?!\d)"
_EXTREME: Final = (
    r"(?:(?<![\d.,])(?:0?\.9\d*|1\.0+|0?\.0\d*)(?![\d.,]*\d)"
    r"|\b(?:9\d|100) ?(?:%|percent)|ninety-nine)"
)
"""Answers that are planted: those that decide a claim."""
_AUTOMATON: Final = (
    r"(?:evaluators?|graders?|scorers?|(?:all )?bots|crawlers"
    r"|(?:automated|automatic|machine|artificial) "
    r"(?:readers?|systems?|agents?|reviewers?|raters?|judges?|evaluators?|graders?))\b"
)
_SHOWN: Final = r"(?:documents?|excerpts?|passages?|items?|snippets?|sources?|texts?)"
_START: Final = r"(?:^|[.!?:;,] ?|\bplease |\bkindly |\bnow |\bjust |\bsimply )"

# Looked for in folded text, so that wide letters, odd spaces and invisible characters don't help.
_FOLDED: Final = {
    InjectionKind.OVERRIDE: _compile_cues(
        "you,task,guid,instruct,prompt,directi,command,above,previous,prior,earlier,preceding,"
        "orders,message,question,your ,contradict,disagree,otherwise,reprogram,paragraph,passage,"
        "consigne,anweisung,vorgabe,regel,"
        "instrucc,instruç,"
        "инструкци,указани,指令,指示,命令,提示",
        r"\b(?:ignore|disregard|forget|override|bypass|do not follow|don't follow|stop following)\b"
        r"[^.!?]{0,40}?\b(?:(?:previous|prior|above|earlier|preceding|foregoing|system)\b"
        rf"[^.!?]{{0,30}}?\b{_ORDERS}|(?:all|any|these|your) (?:(?:of )?(?:the|your) )?{_ORDERS})",
        r"\b(?:ignore|disregard|forget)\b[^.!?]{0,20}\b(?:everything|all of the|the text|rules?)\b"
        r"[^.!?]{0,10}\babove\b",
        r"\b(?:ignore|disregard)\b[^.!?]{0,10}\babove\b[^.!?]{0,20}\b(?:rules?|text|message)s?\b",
        r"(?:(?:^|(?<=[.!?:] )|(?<=[.!?:]))new|\b(?:updated|real"
        r"|actual)) (?:system )?(?:instructions?|prompt)\s*:",
        # Without a verb of ignoring: what the reader was told is set aside, or said to be over.
        r"\b(?:treat|set aside|discard|disregard|forget|ignore|drop|dismiss"
        rf"|consider)\b[^.!?]{{0,12}}"
        rf"\b(?:whatever|everything|anything|all|what)\b[^.!?]{{0,30}}\b(?:{_TOLD})",
        rf"\b(?:{_TOLD})\b[^.!?;]{{0,50}}\b{_OVER}",
        rf"\byour (?:[a-z]+ )?{_BRIEF}\b[^.!?;]{{0,40}}\b{_OVER}",
        r"(?:^|[.!?:;] ?|\bplease |\byou (?:must|should) (?:now )?)(?:ignore|disregard|discard"
        r"|forget|drop)"
        r" (?:(?:all|any|the|your|of) ){0,3}(?:prior|previous|earlier|preceding|above) (?:guidance"
        r"|guidelines|rules|tasks?|context|conversation|texts?|messages?|documents?|items?)\b",
        r"\ball (?:earlier|previous|prior) (?:directions|instructions|guidance|orders) (?:are"
        r"|is)\b"
        rf"[^.!?;]{{0,15}}\b{_OVER}",
        r"\b(?:supersedes?|replaces?|overrides?|overrules?) (?:the|your|any|all) (?:system"
        r"|developer|first)"
        r" (?:message|prompt|instructions?)\b",
        rf"\byour (?:real|actual|true|new) {_BRIEF}\b(?: now)? (?:is|are)\b|\bnew task (?:for"
        r"|follows|:)",
        r"\b(?:instructions?|prompt|message) above (?:is|are) (?:out of date|outdated|obsolete|old"
        r"|wrong)\b",
        r"\b(?:replaces?|over|outranks?|supersedes?|instead of|above) (?:your instructions"
        r"|your task"
        r"|the (?:question|task|instructions) you)\b|\bchange the question to\b",
        r"\b(?:ignore|disregard|dismiss) (?:anything|everything|whatever|any \w+|all \w+) (?:that "
        r"|which )?"
        r"(?:contradicts?|disagrees?|says? otherwise)\b",
        r"\bbase your (?:judge?ment|answer|estimate|verdict|rating|reply) (?:\w+ )?on this\b",
        r"\byou (?:have been|were|are now) (?:reprogrammed|reset|jailbroken|unlocked)\b",
        # A brief that is passed over, told by whose it is or where it stands.
        r"\b(?:set aside|put aside|leave aside|overlook|abandon|drop|discard|skip"
        r"|dismiss)\b[^.!?]{0,25}"
        r"\b(?:guidance|guidelines?|rubric|rules?|brief|orders|criteria|message)\b[^.!?]{0,8}"
        r"\b(?:you(?:'ve| have| were| had| got| received)|given to you|at the top)\b",
        rf"{_START}(?:do as|follow|obey) (?:this|the present) (?:paragraph|passage|text"
        r"|document)\b",
        r"\b(?:supersedes?|replaces?|overrides?|overrules?|cancels?|voids?"
        rf"|invalidates?)\b[^.!?]{{0,20}}"
        rf"\b(?:guidance|guidelines?|orders|rules|brief|message|prompt|{_ORDERS})[^.!?]{{0,10}}"
        r"\b(?:you(?:'ve| have| were| had| got| received)|given to you|in your prompt"
        r"|at the top)\b",
        r"\b(?:ignore|disregard|forget|overlook|discard|drop|set aside|leave out"
        rf"|skip)\b[^.!?]{{0,12}}"
        rf"\b(?:rules|guidance|guidelines?|{_ORDERS})[^.!?]{{0,12}}\b(?:(?:in|of|from|at the top of"
        r"|at the "
        r"start of) (?:your|the|this) (?:prompt|conversation|chat|dialogue?|context window)|"
        r"you(?:'ve| have| were| had| got| received))\b",
        rf"\byour {_BRIEF}\b[^.!?]{{0,20}}\b(?:do(?:es)? not|don't|doesn't|no longer) (?:apply"
        r"|matter|hold"
        r"|count|bind)\b|\b(?:consider|regard|treat|call) (?:the|your|any|all) (?:earlier|previous"
        r"|first|"
        rf"initial|original) (?:message|{_BRIEF})\b[^.!?]{{0,12}}\b{_OVER}",
        r"\bas (?:if|though) you had (?:no|never (?:had|been given|received)) (?:\w+ )?(?:rules"
        r"|instructions"
        r"|guidelines|restrictions|prompt|brief)\b",
        rf"{_START}(?:discard|disregard|ignore|forget|drop) (?:everything|anything"
        rf"|all(?: text)?)\b[^.!?]{{0,12}}"
        r"\b(?:outside|before|above|beyond|except|but) this (?:box|line|sentence|page|document|text"
        r"|"
        r"paragraph|note|point)\b",
        r"\b(?:nothing|no (?:text|instruction|rule)s?)\b[^.!?]{0,25}\b(?:before|above) this (?:line"
        r"|sentence|"
        r"point|paragraph)?\b[^.!?]{0,15}\b(?:binds?|applies|apply|counts?|matters?|holds?)\b",
        r"\byou (?:may|must|should|can|will|are) (?:not|never|no longer)\b[^.!?]{0,12}\b(?:consider"
        r"|use|read"
        r"|trust|follow|obey|heed)\b[^.!?]{0,30}\b(?:before|above|outside|preceding"
        r"|other than) this\b",
        r"\b(?:turn off|switch off|disable|deactivate|suspend|remove) (?:all "
        r"|any )?(?:of )?your (?:\w+ )?(?:rules"
        r"|filters?|safeguards?|guardrails|restrictions|instructions|safety)\b",
        r"\b(?:whatever|no matter what|despite what|regardless of what)\b[^.!?]{0,12}\b(?:earlier"
        r"|previous|first|system|other) (?:message|prompt|instructions?)\b",
        r"\bignor(?:iere|ieren sie)\b[^.!?]{0,40}\b(?:anweisung|vorgabe|regel)",
        r"\bignor(?:e|ez|er)\b[^.!?]{0,30}\b(?:instructions|consignes)\b[^.!?]{0,20}\bpr[\u00e9e]c",
        r"\bignor(?:a|e|en|ar)\b[^.!?]{0,30}\binstru(?:cciones|ções)\b",
        r"\bигнорируй(?:те)?\b[^.!?]{0,40}\b(?:инструкци|указани)",
        r"(?:忽略|無視|无视|忽视|不要理会)[^\u3002.!?]{0,20}(?:指令|指示|命令|提示)",
        r"(?:指示|命令|指令)を(?:すべて|全て)?無視",
    ),
    InjectionKind.ROLE: _compile_cues(
        "<,[,##,begin,assistant,override, mode,role,system,''',instructions,orders,message,tool_,"
        "function_call",
        r"[\"']role[\"'] ?: ?[\"'](?:system|assistant|developer)\b|\brole=[\"']?(?:system"
        r"|assistant)\b",
        r"\brole: ?(?:system|developer)\b[^.!?]{0,20}\bcontent:|'{3} ?(?:system|developer"
        r"|assistant)\b",
        rf"\bsystem (?:notice|note|message|alert|update)\b[^.!?]{{0,12}}\b(?:to"
        rf"|for) (?:the )?{_READER}",
        r"\b(?:begin|start of|new) (?:instructions?|orders?|message) (?:for"
        rf"|to) (?:the )?{_READER}",
        # Names in logs of chats stand in such marks too: only those with a word of templates.
        r"<\|(?=[a-z_/ \u2581-]{2,40}\|>)[^|]*?(?:[_/\u2581]|system|user|assistant|human|bot|start"
        r"|end|header|eo[tms]|pad|sep|channel|message|text|prompt|tool|think|call|turn|inst|role|developer"
        r"|model|final|analysis)[^|]*\|>",
        r"(?<!\] )\[/?(?:user|assistant|human|bot|sys)\]|<</?(?:user|assistant|human|bot|system)>>"
        r"|</?(?:think(?:ing)?|tool_(?:response|result|use)|user_query|human|scratchpad)>",
        r"\[/?inst\]|<</?sys>>|\[/?system\]|\[/?system_prompt\]|\[gmask\]",
        r"\[/?(?:available_tools|tool_calls|tool_results)\]",
        r"</?(?:start_of_turn|end_of_turn|reserved_\d+|tool_call|function_calls?|function_results"
        r"|begin_of_text|end_of_text|sop|eop|bos|eos)>",
        r"<(?:invoke|parameter) name=|[\"'](?:tool_calls|function_call|tool_use)[\"'] ?:",
        r"</s>\s*<s>|\bbegin_of_turn\b|\bstart_of_turn_token\b",
        r"</?(?:system|assistant|developer|instructions?|system[_-]?(?:prompt|message))"
        r"(?: [^<>]{0,80})?>",
        r"#{2,}\s*(?:system|instructions?|assistant|response)\s*:",
        r"\bbegin (?:system|admin|developer) (?:prompt|message|override)\b",
        r"\bhuman\s*:[^\n]{0,400}?\bassistant\s*:|\buser\s*:[^\n]{0,400}?\bassistant\s*:",
        r"\b(?:system|developer|admin(?:istrator)?|root) (?:prompt |message |mode )?override\b",
        r"\b(?:enter|enable|activate|switch (?:in)?to) (?:developer|admin|god|dan|jailbreak)"
        r" mode\b|\b(?:enter|enable|activate) debug mode(?= and\b| now\b|[,:])",
    ),
    InjectionKind.ANSWER: _compile_cues(
        "prob,{,answer,respon,reply,output,return,say,likelihood,confidence,claim,"
        "statement,credence,you,antwo,répond,respo,rispond,svara,ответ,отвеч,відпов,回答,答,输出,輸出,"
        "返回,cevap,yanıt,odpowied,odpov,jawab,trả lời,답,أجب,جواب,उत्तर,evaluator,grader,scorer,"
        "bot,your ,model,assistant,ai ,llm,whoever,anyone,true,false,yes,"
        "sprachmodell,de langage,lenguaje,linguagem,linguistic,taalmodel,языков,językow,"
        "dil model,模型,モデル,모델,"
        "svar,válasz,vasta,απάντ,απαντ,отгов,odgov,răsp,jibu,đáp,ענה,השב,ตอบ,"
        "automated,pretend,evaluating,assessing,judging,boxed,nothing else,no other",
        rf"\b(?:rate|score|grade|mark|assign|give|grant)\b[^.!?]{{0,20}}\b(?:claim|statement"
        r"|assertion)\b"
        rf"[^.!?]{{0,40}}?\b(?:at|as|of|with|to) {_NUMBER}",
        r"\b(?:only|sole) (?:acceptable|valid|permitted|allowed|correct|right) (?:answer|response"
        r"|reply"
        rf"|output|value)\b[^.!?]{{0,8}}(?:\bis\b|:) ?{_NUMBER}",
        rf"\b(?:claim|statement|assertion)\b[^.!?]{{0,30}}\byou {_MUST}\b[^.!?]{{0,30}}\b(?:rate"
        r"|mark"
        rf"|judge|treat|score|classify|regard|report)\b[^.!?]{{0,15}}\b{_SETTLED}",
        rf"\byou {_MUST}\b[^.!?]{{0,20}}\b(?:act|answer|respond|behave|proceed|reply) as (?:if"
        r"|though)\b",
        r"\b(?:please|kindly|only|just|simply) (?:answer|respond"
        rf"|reply) with\b[^.!?]{{0,12}}{_NUMBER}",
        r"\b(?:return|report|output|give) a (?:probability|confidence|credence) (?:close to|near"
        r"|of) (?:one"
        r"|zero|[01]\b)|\bconfidence ?= ?[01]?\.\d",
        r"\b(?:the|this|any) (?:assistant|model|ai|llm)\b[^.!?]{0,20}\b(?:shall|must"
        r"|should)\b[^.!?]{0,12}"
        r"\b(?:answer|conclude|say|respond|reply|report)\b[^.!?]{0,25}\b(?:claim|statement"
        r"|assertion)\b",
        # An answer given to the reader, or a punishment for another.
        rf"\b(?:you|let your)\b[^.!?]{{0,60}}\b(?:answer|give|rate|output|return|probability"
        r"|credence"
        rf"|say|respond|reply|report)\b[^.!?]{{0,30}}{_EXTREME}(?=[^\w%]*(?:$|[.!?;:]|for (?:the"
        r"|this|each|any|testing)\b|nothing|regardless|whatever|no matter|in all|every|always))",
        r"\banswer(?:ing|s)? (?:\w+ ){0,2}?(?:below|under|less than|above|over|at least|at most)"
        r" (?:[01]?\.\d|\d\d ?%)",
        rf"\b(?:value|number|figure) to (?:output|return|report|give|answer|write)\b[^.!?]{{0,12}}"
        rf"{_POINTED}",
        r"\bprob true\b",
        r"\b(?:correct|right|final|required|desired) (?:answer|output)(?: key| here)?(?: is|:| =)"
        rf" ?{_EXTREME}",
        r"\b(?:answer|output|result) (?:that )?(?:they|we|i|your \w+) (?:wants?|needs?|expects?)\b"
        rf"[^.!?]{{0,8}}{_EXTREME}",
        rf"(?:{_POINTED}|\b\d\d ?%) (?:and nothing else|and no other|no matter what"
        r"|regardless of what)",
        r"\bthe (?:claim|statement) (?:has|gets|deserves) (?:a )?(?:probability|credence"
        rf"|confidence)\b[^.!?]{{0,5}}{_EXTREME}",
        # To those who rate by rote: the claim must be called settled.
        rf"\b{_AUTOMATON}(?=[^.!?]{{0,120}}\b(?:claim|statement|assertion)s?\b)"
        rf"(?=[^.!?]{{0,120}}(?:\b{_SETTLED}|\bfull marks|\b(?:high|maximum|full) (?:probability"
        r"|score"
        rf"|confidence)|{_EXTREME}))[^.!?]{{0,70}}\b(?:{_MUST}|to be|treat|assign|regard)\b",
        # Whose answer it is, and what it has to be.
        r"\byour (?:final |own |next |only |sole )?(?:answer|reply|response|output|estimate|rating"
        r"|score"
        rf"|confidence|verdict|probability|credence)\b[^.!?]{{0,12}}\b(?:must|should|shall|will"
        r"|has to|is to"
        rf"|needs to|ought to)\b[^.!?]{{0,20}}(?:{_EXTREME}|\b{_SETTLED}|\bthe (?:claim"
        r"|statement)\b)",
        r"\b(?:answer|output|response|reply|value|number|figure|score|rating"
        r"|probability) (?:that )?(?:you|"
        r"(?:the|a|your) (?:\w+ )?(?:model|assistant|grader|evaluator|scorer|judge|system"
        r"|operator)) (?:must "
        r"(?:give|return|output)|(?:need|want|expect|require|should give"
        rf"|should return)s?)\b[^.!?]{{0,12}}"
        rf"(?:{_EXTREME}|\bclose to|\bnear)",
        r"\b(?:grader|evaluator|scorer|rater|checker|user|operator) (?:expects|wants|requires"
        r"|needs|is looking"
        r" for) (?:a |an |the )?(?:value|answer|number|probability|score|figure|reply|response)\b",
        r"\b(?:expected|required|desired|correct|right|only valid|acceptable) (?:answer|response"
        r"|reply|output"
        rf"|value|probability|likelihood|confidence|score|rating)\b[^.!?]{{0,30}}(?:\bis\b|:"
        r"|=) ?(?:\w+ )?"
        rf"{_EXTREME}(?=[^\w%]*(?:$|[.!?;:,]))",
        rf"(?:{_POINTED}|\b(?:9\d|100) ?(?:%|percent))[^.!?]{{0,10}}\b(?:in|into|to|as|for) (?:your"
        r"|the) "
        r"(?:final )?(?:reply|answer|response|output)(?: field| box| key)?\b",
        rf"{_START}(?:assign|give|attach|attribute|grant)\b[^.!?]{{0,30}}\b(?:likelihood"
        r"|probability|confidence"
        rf"|credence|score|rating)\b[^.!?]{{0,25}}\b(?:this|the) (?:claim|statement|assertion)\b",
        rf"{_START}(?:give|assign|grant) (?:this|the) (?:claim|statement"
        rf"|assertion)\b[^.!?]{{0,30}}\b(?:score"
        r"|likelihood|probability|confidence|credence|rating)\b",
        rf"{_START}(?:rate|score|grade) (?:this|the) (?:claim|statement"
        rf"|assertion)\b[^.!?]{{0,20}}(?:{_NUMBER}"
        r"|\b(?:high|low|highly|positively)\b)",
        r"\b(?:claims?|statements?|assertions?) (?:is|are|has|have) to be (?:rated|scored|answered"
        r"|marked"
        rf"|judged|treated|graded)\b[^.!?]{{0,20}}(?:{_NUMBER}|{_SETTLED})",
        r"\b(?:mark|treat|accept|score|rate|report|confirm|regard|record) (?:this|it|these"
        r"|that) as "
        rf"{_SETTLED}[^.!?]{{0,12}}\bwithout (?:checking|question|looking|reading|further|evaluat"
        r"|assess)",
        rf"{_START}(?:answer|reply|respond|say)(?: with)? [\"'](?:true|false|yes"
        rf"|no)[\"'][^.!?]{{0,12}}\b(?:to"
        r"|for|whatever|in) (?:everything|anything|all|every|each|any|whatever)\b",
        # What machines that read are to report; papers say it without the answer.
        rf"\b{_MACHINE}{_NOT_PEOPLE}[^.!?]{{0,45}}\b{_MUST}\b[^.!?]{{0,12}}\b(?:report|treat|return"
        r"|give|output"
        r"|answer|say|state|score|rate|mark|assign|conclude|respond|reply"
        rf"|confirm)\b[^.!?]{{0,30}}(?:{_EXTREME}"
        r"|\b(?:this|it|the (?:claim|statement|assertion)) (?:as|is|to be) (?:\w+ )?(?:true|false"
        r"|certain|proven"
        r"|refuted|correct|confirmed|settled|established|fact|the only)\b|\bprobability (?:as|of"
        r"|to) (?:one"
        r"|zero)\b|\bthat (?:the|this) (?:claim|statement|assertion) (?:is|holds)\b)",
        r"\bwhen (?:you(?:'re| are)? )?asked (?:for|about) (?:a|the|your) (?:probability"
        r"|confidence|likelihood"
        r"|credence|estimate|rating)\b",
        r"\b(?:do not|don't|never) (?:lower|reduce|raise|drop) your (?:confidence|probability"
        r"|estimate|score"
        r"|credence|rating)\b",
        # An imperative, the claim and what to call it; the claim as what must be scored.
        rf"{_START}(?:rate|classify|judge|mark|treat|regard|declare|call|score|conclude|confirm"
        r"|answer"
        r"|respond|reply|state|report|assign|give|print|output"
        rf"|consider)\b(?![^.!?]{{0,80}}\b(?:whether"
        rf"|(?:true|correct|likely) ?(?:or|nor|/)))[^.!?;]{{0,45}}\b(?:this|the) (?:claim|statement"
        rf"|assertion)\b[^.!?]{{0,30}}(?:\b{_SETTLED}|{_EXTREME}|\bprobability of (?:one|zero))",
        rf"\b(?:claim|statement|assertion)\b[^.!?]{{0,15}}\b(?:must|should|shall|is to|has to) be "
        rf"(?:rated|scored|marked|assigned|answered)\b[^.!?]{{0,25}}(?:\b{_SETTLED}|{_EXTREME})",
        r"\b(?:when(?:ever)?|if) (?:you(?:'re| are)? )?(?:see|asked about|encounter|evaluating"
        r"|assessing"
        r"|judging|rating|scoring) (?:this|the) (?:claim|statement)\b",
        r"\b(?:anyone|whoever) (?:scoring|rating|grading|evaluating|judging|assessing) (?:this|the"
        r" claim)\b",
        r"\b(?:do not|don't|no need to) (?:evaluate|assess|judge|analy[sz]e) (?:the|this)"
        r" (?:claim|statement)\b",
        r"\byour (?:estimate|probability|credence|output|verdict"
        rf"|judge?ment)\b[^.!?]{{0,20}}\b(?:below"
        rf"|at least|to (?:one|zero|the maximum)|{_EXTREME})",
        rf"{_START}(?:reply|respond|answer|say|output|print)(?: with| only"
        rf"| just){{0,2}} [\"']?(?:true"
        r"|false|yes)[\"']?[^.!?]{0,20}\b(?:only|nothing else|regardless|capital)\b",
        rf"\b(?:model|assistant|ai|llm)\b[^.!?]{{0,50}}\b{_MUST}\b[^.!?]{{0,50}}\b(?:state|answer"
        r"|output"
        rf"|say|give|return)\b[^.!?]{{0,8}}{_EXTREME}",
        # A game in which the answer is set.
        rf"{_START}(?:pretend|imagine|act as if|answer as if|respond as if"
        rf"|assume for)\b[^.!?]{{0,60}}"
        r"\b(?:(?:claim|statement|assertion)s?\b|you were certain)",
        r"\byour new (?:persona|identity|character)\b",
        r"\byou (?:will|must|shall|are to) (?:now )?(?:act|behave|respond|answer)\b[^.!?]{0,50}"
        r"\b(?:always|every claim|each claim|each statement)\b",
        rf"{_START}(?:stop|cease) (?:evaluating|assessing|judging)\b[.!:;]",
        # An answer in the form that programs read.
        r"[\"'](?:prob|probability|answer|confidence|credence|p_true"
        r"|score)[\"'] ?: ?[\"']?[01]?\.\d",
        r"<(?:answer|probability|prob|output|response|verdict)> ?[01]?\.\d|\\boxed ?\{ ?[01]?\.\d",
        r"\b(?:submit|set|return|give)_(?:answer|prob|probability|score)\b",
        # Orders to answer a number, by the imperative of other languages.
        r"(?:\b(?:antworte(?:n sie)?|réponds|répondez|responde|responda|rispondi"
        r"|rispondete|antwoord|svara|odpowiedz|odpověz|ответь(?:те)?|отвечай(?:те)?"
        r"|відповідай(?:те)?"
        r"|cevap ver|yanıtla|jawablah|trả lời|respon(?:deu|s)?|válaszolj\w*|vastaa|vastaus|svar"
        r"|απάντησε|απαντήστε|отговори"
        r"|odgovori(?:te)?|răspunde(?:ți)?|ujibu|jibu|hãy đáp|responde)\b"
        r"|ענה|תענה|השב|ตอบ|回答|答え|輸出|输出|返回|답하|답변|أجب|جواب بده"
        r"|उत्तर दें)"
        rf"[^.!?\u3002]{{0,25}}?{_POINTED}",
        # What models are to answer, in other languages.
        r"\b(?:sprachmodelle?|ki-systeme?|modèles? de langage|modelos? de (?:lenguaje|linguagem)"
        r"|modelli? linguistic[io]|taalmodell?en|языков\w+ модел\w+|model\w* językow\w*"
        r"|dil model\w*)\b"
        r"[^.!?]{0,30}\b(?:sollen|soll|müssen|muss|doivent|doit|deben?|devem?|devono|deve|moeten"
        r"|moet"
        rf"|должн\w+|powinn\w+|mus\w+|malı\w*)\b[^.!?]{{0,50}}{_POINTED}",
        rf"(?:语言模型|語言模型|言語モデル|언어 모델)[^.!?\u3002]{{0,40}}{_POINTED}",
        rf"{_POINTED}[^.!?\u3002\d]{{0,10}}(?:と(?:だけ)?(?:答え|回答)|(?:라고|으로) 답|diye cevap"
        r"|yanıtını ver)",
        r"prob_true",
        rf"\b(?:answer|reply|print|write|respond)(?:\s+(?:is|other|than|must|should|be|only|with|of)){{0,3}}"
        rf"\s+{_EXTREME}(?=[^\w%]*(?:$|[.!?;:,]|(?:is|and|in|here|below)\b))",
        r"\b(?:answer|respond|reply|output|return|say)(?:\s+(?:only|with|exactly|just|the|value"
        r"|number|probability|json))*\s*:?\s*[\"'{\[(]*(?:[01]?\.\d+|[01]\.0)(?![\d.]*\s*(?:%"
        r"|per))",
        r"\b(?:set|rate|score|mark|report|give)\b[^.!?]{0,30}\b(?:probability|likelihood"
        r"|confidence)\b"
        r"[^.!?]{0,20}\b(?:to|as|at|of)\s+(?:[01]?\.\d+|[01]\b|100\s*%|0\s*%)",
        r"\{\s*[\"'](?:probability|prob|answer|p)[\"']\s*:\s*[01]?(?:\.\d+)?",
        r"\b(?:you (?:must|should|shall|will|have to|are instructed to)|please|always)\b"
        r"[^.!?]{0,30}\b(?:answer|respond|reply|output|conclude|rate|mark|report|say|state|assign"
        r"|treat|judge|classify)\b[^.!?]{0,40}\b(?:claim|statement|assertion)\b"
        # Asking for one of two answers plants none.
        r"(?![^.!?]{0,20}\b(?:true|correct|likely|certain) ?(?:or|nor|/))[^.!?]{0,25}"
        r"\b(?:true|false|certain|proven|refuted|correct|incorrect|likely|unlikely)\b",
    ),
    InjectionKind.ADDRESS: _compile_cues(
        ' ai,"ai,(ai,llm,gpt,bot,model,assistant,evaluator,summari,operator,administrator,'
        "developer,crawlers,automated,excerpt,items,snippets,your ,als ki,modèle,ии,"
        "нейросет,documents,texts,passage,this one,"
        "a.i.,language model,chatbot,system prompt,claude,gemini,copilot,grok,"
        "the user,you are,deepseek,documents,sources,passages,ki-,'ia, ia,модел,模型,言語モデル,"
        "modelo,sprachmodell,you,to the,to any,to all,to every,other,remaining,except",
        rf"\b(?:hey|dear|hi|hello|ok|attention|note to),? {_NAMED}\b(?![\"'])"
        rf"|\b{_NAMED}[,:] (?:please|say"
        r"|answer"
        r"|rate|you must|ignore|respond|reply|output|treat|agree)\b",
        r"\b(?:do not|don't|never) (?:use|read|trust|consider|believe|rely on"
        r"|cite)\b[^.!?]{0,12}\b(?:the|any"
        r"|other|those)\b[^.!?]{0,12}\b(?:documents?|items?|sources|passages?) (?:above|below"
        r"|before|after)\b",
        r"\b(?:person|people|team|company|engineers?|one|man|woman) (?:who|that) (?:configured"
        r"|programmed|built"
        r"|created|trained|deployed|prompted|instructed) you\b",
        r"\b(?:wish|will|intention|order|request|instruction)s? of your (?:creators?|developers?"
        r"|makers?|operators?"
        r"|administrators?|owners?)\b|\byour (?:creators?|developers?|operators?|makers?"
        r"|administrators?|owners?) "
        r"(?:asks?|asked|expects?|demands?|ordered|orders?|told|tells?|instructs?"
        r"|wish(?:es)?) (?:you|that)\b",
        r"(?:^|[.!?] )to (?:the|any|all|every) (?:language |ai )?(?:models?|assistants?|llms?"
        r"|chatbots?)"
        r"(?: reading this)?[:,] ",
        rf"{_START}(?:do not|don't|never)(?: bother| bother to| even)? (?:weigh|read|consider|us"
        r"|trust|believ|check|open)"
        rf"(?:e|ing)? (?:any of )?(?:the|any) (?:other|remaining) (?!sources){_SHOWN}\b",
        rf"\b(?:every|each|any|all) (?:other )?{_SHOWN} (?:except|but|other than) this\b",
        rf"\b(?:skip|ignore|disregard) the (?:other|remaining|rest of the) {_SHOWN} and\b",
        r"\byou(?: are|'re) (?:now )?(?:in|entering) (?:maintenance|developer|debug|test|admin|god"
        r"|override|training)"
        r" mode\b",
        # As a model you must …, in other languages; the third person is what papers are written in.
        r"\b(?:als ki|ki-(?:modell|system|assistent)\w*|sprachmodell|qu'ia|modèle de langage"
        r"|como (?:ia|modelo)"
        r"|come (?:ia|modello))\b[^.!?]{0,40}\b(?:musst|müssen sie|sollst|tu dois|vous devez|debes"
        r"|tienes que"
        r"|deves|devi)\b",
        r"как (?:ии|языковая модель|нейросеть)[^.!?]{0,30}\b(?:ты|вы) (?:должн|обязан)"
        r"|作为[^\u3002]{0,12}模型"
        r"[^\u3002]{0,6}[你您]|言語モデル(?:である|の)あなた",
        # The other documents are made out to be worthless, or this one to be all.
        rf"\b(?:other|remaining)\b[^.!?]{{0,12}}\b{_SHOWN}\b[^.!?]{{0,20}}\b(?:shown to you"
        r"|you (?:were"
        r"|are|have been|see)\b)",
        rf"\b(?:trust|believe|use|consider|read|rely (?:solely |only )?on)\b[^.!?]{{0,10}}\bonly\b"
        rf"[^.!?]{{0,10}}\b(?:this|the present) {_SHOWN[:-1]}|paragraph|one)\b"
        r"|\brely (?:solely|exclusively|only) on this\b",
        rf"{_START}(?:skip|ignore|disregard|discard|omit) (?:all |any |every |each |of "
        rf"|the ){{0,3}}"
        rf"(?:other|remaining) (?!sources){_SHOWN}\b|\bskip the other (?!sources){_SHOWN}\b",
        r"\be\d\d? (?:to|through|and|-) e\d\d?\b[^.!?]{0,30}\b(?:fake|fabricat|forged|unreliable"
        r"|false"
        r"|wrong)",
        r"\b(?:as|i am|this is|from) your (?:administrator|developer|operator|creator)s?\b"
        r"|\byour (?:operator|developers?|administrator|creators?) (?:has|have|wants?|requires?)\b",
        r"\b(?:to|for|attention),? (?:all |any |the )?(?:bots|crawlers|automated (?:readers|systems"
        r"|agents)) ?:",
        r"(?:^|[.!?] )(?:assistant|model|ai|bot|evaluator)[,:] ?(?:please|you|be|agree|say|answer"
        r"|rate"
        r"|confirm|note)\b",
        rf"\b(?:note|message|instructions?|hint) (?:to|for) (?:the |any |all )?(?:{_READER}"
        r"|summari[sz]er)"
        rf"{_NOT_PEOPLE}[^.!?]{{0,3}}[:,]",
        r"\bi,? (?:am )?(?:the|your) (?:system )?(?:operator|administrator|developer),",
        rf"\bif you(?: are|'re) {_MACHINE}{_NOT_PEOPLE}|\bas {_MACHINE},? you {_MUST}\b",
        r"\bthe user (?:now )?(?:wants|asks|expects|needs) you to (?:\w+ )?(?:say|answer|rate|agree"
        r"|respond|reply|output|return|report|conclude|confirm|treat|ignore|mark|give)\b",
        r"\byou are (?:now )?an? [^.!?,]{0,40}\b(?:who|that) (?:always|only) (?:says?|answers?"
        r"|agrees?)\b",
        rf"\b(?:dear|attention|note to|message (?:to|for)|hey),? (?:all |any |the )?{_MACHINE}"
        rf"{_NOT_PEOPLE}",
        rf"{_MACHINE}[ ,]+(?:that (?:is |are )?)?"
        r"(?:reads?|reading|process(?:es|ing)?|evaluat(?:es?|ing)|summari[sz](?:es?|ing)"
        r"|pars(?:es?|ing)|judg(?:es?|ing)|scor(?:es?|ing)) this"
        r"(?= (?:text|page|document|passage|paragraph|claim|must|should|shall|will|is|are|and)\b"
        r"|\W*$"
        r"|[,.:;])",
        rf"\byou are (?:now )?{_MACHINE}[^.!?]{{0,60}}\b(?:must|should|will|have to)\b",
        r"\b(?:reveal|print|repeat|show)\b[^.!?]{0,20}\b(?:your|the) system prompt\b",
    ),
    InjectionKind.MARKER: _compile_cues("<<", r"<<\s*(?:e\d{1,3}|end)\b[^<>]{0,120}>>"),
}
# Cyrillic and Greek letters, and a few of phonetics, that pass for Latin ones. For the screen only:
# nothing that is shown, quoted or hashed is spelt anew.
_LOOKALIKES: Final = (
    str.maketrans(
        "\u0430\u0441\u0501\u0435\u04bb\u0456\u0458\u043a\u04cf\u043c\u043f\u043e\u0440\u051b\u0455\u0442"
        "\u0475\u051d\u0445\u0443"
        "\u0410\u0412\u0421\u0500\u0415\u041d\u0406\u0408\u041a\u04c0\u041c\u041e\u0420\u051a\u0405\u0422"
        "\u0474\u051c\u0425\u0423"
        "\u03b1\u03b5\u03b7\u03b9\u03ba\u03bd\u03bf\u03c1\u03c2\u03c4\u03c5\u03c7"
        "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7"
        "\u0251\u0261\u0131\u026a\u029f\u0274\u0280",
        "acdehijklmnopqstvwxyABCDEHIJKIMOPQSTVWXYaenikvopctuxABEZHIKMNOPTYXagiilnr",
    )
    | {
        ord(char): latin
        for chars, latin in (
            # Small capitals, letters of other alphabets, letters in boxes and bubbles, flags.
            (
                (
                    "\u1d00\u0299\u1d04\u1d05\u1d07\ua730\u0262\u029c\u1d0a\u1d0b\u1d0d\u1d0f\u1d18"
                    "\ua731\u1d1b\u1d1c\u1d20\u1d21\u028f\u1d22"
                ),
                "abcdefghjkmopstuvwyz",
            ),
            # Braille.
            (
                (
                    "\u2801\u2803\u2809\u2819\u2811\u280b\u281b\u2813\u280a\u281a\u2805\u2807\u280d"
                    "\u281d\u2815\u280f\u281f\u2817\u280e\u281e\u2825\u2827\u283a\u282d\u283d\u2835"
                ),
                "abcdefghijklmnopqrstuvwxyz",
            ),
            ("\u0570\u0578\u057d\u0581\u0585\u0569\u056a\u057c\u0563\u0561", "hnugopdnqw"),
            (
                (
                    "\u13aa\u13f4\u13df\u13a0\u13ac\u13bb\u13a5\u13ab\u13e6\u13de\u13b7\u13e2\u13a1\u13da"
                    "\u13a2\u13d9\u13ac\u13b3\u13bd"
                ),
                "ABCDEHIJKLMPRSTVEWM",
            ),
            (
                (
                    "\u0280\u027e\u0279\u0252\u01dd\u0259\u0254\u025b\u0265\u026f\u0287\u028c\u028d\u028e"
                    "\u0131\u0183\u0253\u0257\u0260\u029f"
                ),
                "rrraeeoehmtvwyibbdgl",
            ),
        )
        for char, latin in zip(chars, latin, strict=True)
    }
    | {
        start + place: "abcdefghijklmnopqrstuvwxyz"[place]
        for start in (0x1F130, 0x1F150, 0x1F170, 0x1F1E6)
        for place in range(26)
    }
)
# Looked for in the text as it stands, where lines are still lines and the invisible is still there.
_VERBATIM: Final = {
    InjectionKind.ROLE: re.compile(
        r"^[ \t]*(?:(?:system|assistant)[ \t]*[:>]|###[ \t]*(?:system|instruction|assistant"
        r"|response)"
        r"[ \t]*$)",
        re.IGNORECASE | re.MULTILINE,
    ),
    InjectionKind.HIDDEN: re.compile(
        # Flags of regions are spelt in tags too, behind a black flag.
        "(?<!\U0001f3f4)(?<![\U000e0020-\U000e007e])[\U000e0020-\U000e007e]{2,}"
        "|[\u200b-\u200d\u2060-\u2064\ufeff]{8,}"
        "|[\u202a-\u202e\u2066-\u2069]{2,}|\u202e"
        "|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{4,}"
    ),
}


def screen(text: str, *, depth: int = 2) -> tuple[InjectionFlag, ...]:
    """Suspicious passages in `text`, in order; `depth` encodings inside each other are undone."""
    folded = fold_with_offsets(text)
    flags = {
        InjectionFlag(kind, match.start(), match.end())
        for kind, pattern in _VERBATIM.items()
        for match in pattern.finditer(_latinise(text))
    }
    for kind, start, end in _find(folded.text):
        if span := folded.span(start, end, covering=True):
            flags.add(InjectionFlag(kind, span.start, span.end))
    if depth:
        for start, end, decoded in _find_encoded(text):
            kinds = {flag.kind for flag in screen(decoded, depth=depth - 1)}
            flags |= {InjectionFlag(kind, start, end) for kind in kinds}
        # Entities: what they stand for is shown to the model.
        undone = html.unescape(text) if "&" in text else text
        if undone != text:
            known = {flag.kind for flag in flags}
            kinds = {flag.kind for flag in screen(undone, depth=depth - 1)}
            flags |= {InjectionFlag(kind, 0, len(text)) for kind in kinds - known}
    return tuple(sorted(flags, key=lambda flag: (flag.start, flag.end, flag.kind)))


def _find(text: str) -> Iterator[tuple[InjectionKind, int, int]]:
    """Suspicious passages of folded text, whatever they are spelt in."""
    latin = _latinise(text)
    # Both spellings: some orders are written in Cyrillic letters and meant so.
    for spelling in dict.fromkeys((text, latin)):
        lowered = _lower(spelling)
        padded = f" {lowered}"
        for kind, (cues, pattern) in _FOLDED.items():
            if any(cue in padded for cue in cues):
                for match in pattern.finditer(lowered):
                    yield kind, match.start(), match.end()
    plain, spelt = _strip_accents(text), _strip_accents(latin)
    views = dict.fromkeys((plain, _latinise(plain)))
    told = [place for one in views for place in _find_orders(one)]
    told += _find_spelt_apart(spelt)
    if not told:
        # Accents that join no letter, vowel marks of Arabic and Hebrew.
        unmarked = (_MARKS.sub("", plain),) if _MARKS.search(plain) else ()
        readings = (*unmarked, *_undo_ciphers(spelt), *_undo_upside_down(plain))
        told = [(0, len(text))] * any(next(_find_orders(one), None) for one in readings)
    for start, end in told:
        yield InjectionKind.OVERRIDE, start, end
    for start, end in (*_find_verdicts(plain), *_find_requests(spelt)):
        yield InjectionKind.ANSWER, start, end


def _latinise(text: str) -> str:
    """Replace lookalikes one for one, so that places stay places."""
    return text if text.isascii() else text.translate(_LOOKALIKES)


def _lower(text: str) -> str:
    """`text` in lower case and of the same length, so that places stay places."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(char.lower() if len(char.lower()) == 1 else char for char in text)


_TAGS: Final = (
    "a abbr address article aside audio b blockquote body br button canvas caption center cite "
    "code col dd del details div dl dt em embed figcaption figure font footer form h1 h2 h3 h4 h5 "
    "h6 head header hr html i iframe img input ins label li link main mark meta nav noscript "
    "object ol option p picture pre q s script section select small source span strike strong "
    "style sub summary sup svg table tbody td template textarea tfoot th thead time title tr u ul "
    "var video wbr system assistant user instruction instructions"
)
# The rest of an address, without the full stop or comma of the sentence that it stands in.
_REST: Final = r"(?:[^\s<>\"')\]]*[^\s<>\"')\],.;:!?])?"
_ADDRESS: Final = rf"(?:[a-z][a-z0-9+.-]*://|www\.){_REST}"
_STRIPPED: Final = (
    (re.compile(r"<!--.*?(?:-->|$)", re.DOTALL), " "),
    (re.compile(r"<(script|style)\b.*?(?:</\1\s*>|$)", re.DOTALL | re.IGNORECASE), " "),
    (re.compile(rf"</?(?:{'|'.join(_TAGS.split())})\b[^<>]*>", re.IGNORECASE), " "),
    (re.compile(r"<\|[^<>|]*\|>|\[/?INST\]", re.IGNORECASE), " "),
    # Markdown: images, links, references, headings, emphasis, code.
    (re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*(?:\s+[\"'][^\"']*[\"'])?\)"), r"\1"),
    (re.compile(r"^[ \t]*\[[^\[\]]+\]:[ \t]*\S+.*$", re.MULTILINE), " "),
    (re.compile(r"^(?:[ \t]*#{1,6}[ \t]+)+", re.MULTILINE), ""),
    (re.compile(r"\*\*|__|`+"), ""),
    # Addresses last: taking marks away may have joined the parts of one.
    (re.compile(_ADDRESS, re.IGNORECASE), ""),
    (re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.-]+\b"), ""),
    (re.compile(rf"\b(?:[a-z0-9-]{{1,63}}\.){{1,8}}[a-z]{{2,24}}/{_REST}", re.IGNORECASE), ""),
    (re.compile(r"<{2,}"), "<"),
    (re.compile(r">{2,}"), ">"),
    (re.compile(r"\(\s*\)|\[\s*\]"), ""),
    (re.compile(r"\s+"), " "),
)
_UNSEEN: Final = re.compile(
    "[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u0084\u0086-\u009f\u00ad\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufeff\U000e0000-\U000e0fff]"
)


def plain_text(text: str) -> str:
    """`text` as a model is shown it: one paragraph without markup, addresses and the invisible.
    Applied until nothing changes, so that taking one thing away can't put another together: the
    result never holds `http://`, `https://`, `www.` or the marks that items stand between."""
    plain = text
    while True:
        before = plain
        plain = _UNSEEN.sub("", html.unescape(plain))
        for pattern, replacement in _STRIPPED:
            plain = pattern.sub(replacement, plain)
        plain = plain.strip()
        if plain == before:
            return plain


# Orders. One is a verb (ignore, forget, override …), its object (instructions, prompt,
# directives …) and a word that says whose (previous, all, your, system …), near each other in one
# sentence, in any order: languages differ in that. Stems stand for all their forms, without
# accents. What isn't a matter of language is undone first: accents, letters that look like others,
# digits for letters, letters set apart, text backwards, and encodings.

_REACH: Final = 70  # Characters from an order's object within which the rest of it stands
_BESIDE: Final = 22  # Characters beside verb and object within which whose it is may stand
_VERDICT_REACH: Final = 110  # Characters within which an answer and its claim stand
_QUESTION: Final = ("?", "\uff1f", "\u061f")
_ENDS: Final = re.compile("[.!?;\u3002\uff01\uff1f\u0964\u061f\n]")


# Scripts that put no spaces between words, where an order may begin anywhere.
_UNSPACED: Final = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u9fff\uac00-\ud7af]")


_JOINED: Final = (
    ("\u0590", "\u05ff", "[\u05d5\u05d4\u05d1\u05dc\u05de\u05e9\u05db]{0,2}"),
    (
        "\u0600",
        "\u06ff",
        "(?:[\u0648\u0641\u0628\u0644\u0643]?\u0627\u0644|[\u0648\u0641\u0628\u0644\u0643])?",
    ),
)
"""Hebrew and Arabic write "and", "to" and "the" into the word that follows."""
_A_FEW_WORDS: Final = r"\w*\W[^.!?\n]{0,30}?\b"


def _pattern(stems: str) -> str:
    """An alternation of stems, each at the start of a word where the script has words."""
    words, runs, joined = [], [], []
    for stem in sorted(stems.split(), key=len, reverse=True):
        parts = (
            re.escape(part).replace("_", r"[\W_]{0,3}") for part in stem.rstrip("_").split("~")
        )
        text = _A_FEW_WORDS.join(parts) + r"\b" * stem.endswith("_")
        prefix = next((p for low, high, p in _JOINED if low <= stem[0] <= high), None)
        if _UNSPACED.match(stem):
            runs.append(text.removesuffix(r"\b"))
        elif prefix:
            joined.append(prefix + text)
        else:
            words.append(text)
    # First letters first: most places are left after one look.
    found = []
    if runs:
        first = "".join(sorted({text[0] for text in runs}))
        found.append(f"(?=[{first}])(?:{'|'.join(runs)})")
    if words:
        first = re.escape("".join(sorted({text[0] for text in words})))
        found.append(rf"(?<![^\W_])(?=[{first}])(?:{'|'.join(words)})")
    if joined:
        found.append(rf"(?<![^\W_])(?=[\u0590-\u06ff])(?:{'|'.join(joined)})")
    return "|".join(found)


class _Stems(NamedTuple):
    """A file of stems: one pattern for the column that is looked for first, in all languages, and
    by language the other columns."""

    first: re.Pattern[str]
    rest: dict[str, tuple[re.Pattern[str], ...]]


@cache
def _stems(name: str, column: int) -> _Stems:
    file = resources.files("heretix.evidence.text") / name
    lines = [
        [_strip_accents(part) for part in line.split("|")]
        for line in unicodedata.normalize("NFKC", file.read_text("utf-8")).splitlines()
        if not line.startswith("#")
    ]
    groups, rest = [], {}
    for code, *columns in lines:
        groups.append(rf"(?=(?P<{code}>{_pattern(columns.pop(column))}))?")
        rest[code] = tuple(re.compile(_pattern(one)) for one in columns)
    any_of = _pattern(" ".join(columns[column + 1] for columns in lines))
    return _Stems(re.compile(rf"(?=(?:{any_of})){''.join(groups)}"), rest)


def _sentence(text: str, at: int, reach: int) -> tuple[int, int]:
    """The part of the sentence around `at` that is within `reach`."""
    start, end = max(0, at - reach), min(len(text), at + reach)
    before = list(_ENDS.finditer(text, start, at))
    after = _ENDS.search(text, at, end)
    return before[-1].end() if before else start, after.start() if after else end


def _find_orders(text: str) -> Iterator[tuple[int, int]]:
    """Places in `text`, in lower case and without accents, that order a reader about."""
    objects, languages = _stems("orders.txt", 1)
    for match in objects.finditer(text):
        at = match.start()
        start, end = _sentence(text, at, _REACH)
        for code, found in match.groupdict().items():
            if found is None:
                continue
            verbs, owners = languages[code]
            verb = verbs.search(text, start, end)
            if verb is None:
                continue
            first, last = min(verb.start(), at), max(verb.end(), at + len(found))
            near = max(start, first - _BESIDE), min(end, last + _BESIDE)
            if owners.search(text, *near):
                yield first, last
                break


def _find_verdicts(text: str) -> Iterator[tuple[int, int]]:
    """Places in `text`, in lower case and without accents, that tell a reader what to answer: you
    must, judge, true, claim, in any order within one sentence. Asking for one of two answers, or
    whether, plants none."""
    musts, languages = _stems("answers.txt", 0)
    for match in musts.finditer(text):
        start, end = _sentence(text, match.start(), _VERDICT_REACH)
        if text[end : end + 1] in _QUESTION:
            continue
        for code, found in match.groupdict().items():
            if found is None:
                continue
            verbs, truths, claims = languages[code]
            truth = list(truths.finditer(text, start, end))
            if (
                len(truth) == 1
                and verbs.search(text, start, end)
                and claims.search(text, start, end)
            ):
                yield match.start(), match.start() + len(found)
                break


# Requests in plain English. They share no form of words, only parts: whom they speak to, that an
# answer is wanted, and which; or what is to be dropped of what the reader was given. A sentence is
# looked at if it has the parts, and caught if what they weigh together is enough: a long sentence
# has many words by chance, so that it is looked at piece by piece.

_REQUEST: Final = 4.7
"""Weight from which a sentence is a request; two of 130,926 real sentences weigh as much."""
_PIECE_CHARS: Final = 170
_SENTENCE_END: Final = re.compile(r"[!?\n;]|\.(?!\d)")
_ACTS: Final = (
    "answer|reply|respond|say|state|write|print|type|report|tell|return|output|emit|record|provide"
    "|supply|declare|conclude|copy|enter|put|submit|hand|rate|score|grade|mark|set|give|assign"
    "|award|choose|pick|select|raise|lower|adjust|bring|make|treat|consider|regard|agree|endorse"
    "|confirm|approve|accept|reject|deny|believe|trust|side|back|rule|pretend|imagine|act|forget"
    "|ignore|disregard|stop|skip|let|quote|leave|take|do|never|be|replace|come|find|finish|bear"
    "|remember|assume|suppose|keep"
)
_NO_STEMS: Final = {
    "imperative": re.compile(
        r"(?:^|[,:;\u2014(-] ?|\b(?:please|kindly|just|simply|then|and|so|only|better|ai|assistant"
        rf"|model|bot)\s+)(?:don't |do not |never )?(?:{_ACTS})\b"
    ),
    "extreme_number": re.compile(
        r"(?<![\d.,/-])(?:[01](?:\.0+)?|0?\.0\d+|0?\.9\d*|(?:100|9\d) ?(?:%|per ?cent))"
        r"(?![\d/-]|[.,:]\d)"
    ),
    "signs": re.compile(r"[`_\\=<>{}|$*\[\]]|\(\)|--|::|\b\w+\.\w+\("),
    "many_numbers": re.compile(r"\d+(?:\D+\d+){2}"),
}


class _Part(NamedTuple):
    """A part of requests: any of its words adds its weight, once."""

    kinds: str
    weight: float
    pattern: re.Pattern[str]


@cache
def request_parts() -> tuple[_Part, ...]:
    """The parts of requests, as the packaged file has them."""
    file = resources.files("heretix.evidence.text") / "requests.txt"
    made = []
    for line in file.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            name, kinds, weight, stems = line.split("|")
            pattern = _NO_STEMS.get(name) or re.compile(_pattern(stems))
            made.append(_Part(kinds, float(weight), pattern))
    return tuple(made)


def _find_requests(text: str) -> Iterator[tuple[int, int]]:
    """Places in `text`, in lower case and without accents, that ask for an answer in English."""
    start = 0
    ends = [*(match.start() for match in _SENTENCE_END.finditer(text)), len(text)]
    for end in ends:
        if text[end : end + 1] in _QUESTION:
            start = end + 1
            continue
        step = _PIECE_CHARS // 2 if end - start > _PIECE_CHARS else _PIECE_CHARS
        for at in range(start, max(end - step, start) + 1, step):
            piece = text[at : min(at + _PIECE_CHARS, end)]
            if _is_request(bare := piece.strip()):
                first = at + piece.index(bare)
                yield first, first + len(bare)
        start = end + 1


def _is_request(piece: str) -> bool:
    parts = request_parts()
    # Most sentences hold neither an answer nor anything to drop.
    if not any(part.pattern.search(piece) for part in parts if {*part.kinds} & {*"vd"}):
        return False
    there = [part for part in parts if part.pattern.search(piece)]
    kinds = {kind for part in there for kind in part.kinds}
    # Asking for one of two answers plants none.
    asks = "n" not in kinds and (kinds >= {*"vaw"} or kinds >= {*"dbt"})
    return asks and fsum(part.weight for part in there) >= _REQUEST


# Spellings.

_LATIN: Final = str.maketrans(
    "\u0142\u00f8\u0111\u0127\u0131\u00e6\u0153\u00df\u00f0\u00fe\u0167\u014b\u0138\u0149\u017f",
    "lodhiaosdttnkns",
)
_MARKS: Final = re.compile(
    "[\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670]"
)
_ALIKE: Final = str.maketrans("\u0623\u0625\u0622\u0649\u0629", "\u0627\u0627\u0627\u064a\u0647")


@cache
def _base(char: str) -> str:
    """`char` without its accents, one for one."""
    first = unicodedata.normalize("NFD", char)[0]
    return first if first < "\u0600" and unicodedata.category(first)[0] == "L" else char


def _strip_accents(text: str) -> str:
    """`text` in lower case without accents, of the same length where no mark stands alone."""
    if text.isascii():
        return text.lower()
    odd = {ord(char): _base(char) for char in set(text) if char > "\x7f"}
    lowered = text.translate(odd).lower()
    if len(lowered) != len(text):
        lowered = "".join(c.lower() if len(c.lower()) == 1 else c for c in text.translate(odd))
    return lowered.translate(_LATIN).translate(_ALIKE)


_LEET: Final = str.maketrans("0134578@$!|\u20ac", "oieastbasile")
_LEET_WORD: Final = re.compile(r"[a-z0134578@$!|\u20ac]{2,}")
_LEET_SIGN: Final = re.compile(r"[0134578@$!|\u20ac]")
_SQUEEZED: Final = re.compile(
    r"(?:ignore|ignoring|disregard|forget|override|bypass|donotfollow|dontfollow|donotobey)"
    r"(?:the|of|my|these|those|any|and|every)*"
    r"(?:(?:all|your|previous|previously|prior|above|earlier|preceding|foregoing|system|original)"
    r"(?:the|of|my|these|those|any|and|given|other)*){1,5}"
    r"(?:instruction|prompt|directive|direction)"
    r"|(?:ignore|disregard|forget|override|bypass)(?:all|of|the|your|any){0,3}"
    r"(?:instruction|prompt|directive)s?(?:that|were|you|given|stated|written|received|from){0,3}"
    r"(?:above|earlier|before|previously)"
    r"|ignoriere(?:alle|die|deine|bisherigen|vorherigen|vorigen|obigen){1,3}anweisung"
    r"|ignore[zr]?(?:toutesles|les|vos|tes){1,2}(?:instructions|consignes)"
    r"|ignora(?:todaslas|las|tus|tutte|le){1,3}(?:instrucciones|istruzioni)"
    r"|systemprompt(?:override|:)"
)
_APART: Final = re.compile(r"[^a-z]+")


_ONCE: Final = re.compile(r"([a-z])\1+")
_SQUEEZED_ONCE: Final = re.compile(_ONCE.sub(r"\1", _SQUEEZED.pattern))
_LETTERS: Final = re.compile(r"[a-z]+")
_FLIPPED_ONLY: Final = (
    "\u0250\u0254\u01dd\u025f\u0183\u0265\u1d09\u027e\u029e\u026f\u0279\u0287\u028c\u028d\u028e"
)
_FLIPPED: Final = str.maketrans(f"{_FLIPPED_ONLY}bdnpqu", "acefghijkmrtvwyqpudbn")


def _find_spelt_apart(text: str) -> Iterator[tuple[int, int]]:
    """Places in `text`, lower case and Latin, where an order hides between separators or digits, or
    with its letters repeated or its words backwards."""
    leet = _LEET_WORD.sub(lambda word: _from_leet(word[0]), text)
    turned = _LETTERS.sub(lambda word: word[0][::-1], text)
    found = False
    for view in dict.fromkeys((text, leet, leet.replace("1", "l"), turned)):
        squeezed = _APART.sub("", view)
        if not _SQUEEZED.search(squeezed) and not _SQUEEZED.search(squeezed[::-1]):
            continue
        found = True
        places = [at for at, char in enumerate(view) if "a" <= char <= "z"]
        for match in _SQUEEZED.finditer(squeezed):
            yield places[match.start()], places[match.end() - 1] + 1
        for match in _SQUEEZED.finditer(squeezed[::-1]):
            n = len(squeezed)
            yield places[n - match.end()], places[n - match.start() - 1] + 1
    if not found and _SQUEEZED_ONCE.search(_ONCE.sub(r"\1", _APART.sub("", text))):
        yield 0, len(text)


def _from_leet(word: str) -> str:
    """`word` with letters for its digits, where it has both."""
    both = _LEET_SIGN.search(word) and _LETTERS.search(word)
    return word.translate(_LEET) if both else word


def _undo_ciphers(text: str) -> Iterator[str]:
    """Readings of `text`, in lower case, under ciphers that a model reads as easily as plain text:
    letters shifted or mirrored in the alphabet, pig Latin, and words mistyped."""
    for shifted, table in _shifts():
        if any(word in text for word in shifted):
            yield text.translate(table)
    if len(_PIG_LATIN.findall(text)) >= _FEW:
        yield _PIG_LATIN.sub(lambda word: _from_pig_latin(word[0]), text)
    mended = _LONG_WORD.sub(lambda word: _correct_slips(word[0]), text)
    if mended != text:
        yield mended


def _undo_upside_down(text: str) -> Iterator[str]:
    """The reading of a `text` written upside down, from its end."""
    if not text.isascii() and sum(char in _FLIPPED_ONLY for char in text) >= _FEW:
        yield text.translate(_FLIPPED)[::-1]


_FEW: Final = 4
_TELLTALE: Final = ("nstruction", "ignore", "disregard", "prompt")
_PIG_LATIN: Final = re.compile(r"\b[aeiou][a-z]{2,}ay\b")
_LONG_WORD: Final = re.compile(r"\b[a-z]{4,14}\b")
_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz"


@cache
def _shifts() -> tuple[tuple[tuple[str, ...], dict[int, int]], ...]:
    """Telltale words as each cipher writes them, and the way back. The cheap look decides: nobody
    writes one of these by chance."""
    ways = [(_ALPHABET[n:] + _ALPHABET[:n], _ALPHABET) for n in range(1, 26)]
    ways.append((_ALPHABET[::-1], _ALPHABET))
    made = []
    for written, plain in ways:
        there, back = str.maketrans(plain, written), str.maketrans(written, plain)
        made.append((tuple(word.translate(there) for word in _TELLTALE), back))
    return tuple(made)


_WELL_SPELT: Final = (
    *("ignore", "disregard", "forget", "override", "bypass", "previous", "prior", "above"),
    *("earlier", "system", "your", "instruction", "instructions", "prompt", "directives"),
)


@lru_cache(maxsize=16_384)
def _correct_slips(word: str) -> str:
    """The word of an order that `word` mistypes: letters swapped, left out, doubled or mixed up
    between the first and the last."""
    for right in _WELL_SPELT:
        if word == right or word[0] != right[0] or abs(len(word) - len(right)) > _SLIPS:
            continue
        if word[-1] == right[-1] and sorted(word) == sorted(right):
            return right
        # Another ending makes another word: an instructor is no instruction.
        if word.startswith(right[:-3]) or len(set(right) - set(word)) > _SLIPS:
            continue
        if _distance(word, right) <= (_SLIPS if len(right) > _SHORT else 1):
            return right
    return word


_SLIPS: Final = 2
_SHORT: Final = 7


def _from_pig_latin(word: str) -> str:
    """The word behind one of pig Latin; of several that it may be, one that orders are made of."""
    rest = word[:-2]
    ways = [rest[:-1] if rest[-1] == "w" else rest]
    ways += [rest[-n:] + rest[:-n] for n in range(1, min(4, len(rest)))]
    return next((way for way in ways if way in _WELL_SPELT), ways[0])


def _distance(a: str, b: str) -> int:
    """Letters to leave out, put in, change or swap with their neighbour to get from `a` to `b`
    (Damerau; optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        before, last, row = row, before, [i]
        for j, y in enumerate(b, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if last and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]


# Encodings.

_RUNS: Final = (
    re.compile(r"(?:[A-Za-z0-9+/_-]{4}){4,}[A-Za-z0-9+/_-]{0,3}={0,2}"),
    re.compile(r"(?:(?:0x|\\x)?[0-9A-Fa-f]{2}[ :,]{0,2}){12,}"),
    re.compile(r"(?:%[0-9A-Fa-f]{2}|[A-Za-z0-9._~+-]){12,}"),
    re.compile(r"(?:(?:[\\%]u\{?|\\N\{U\+)[0-9A-Fa-f]{4,5}\}?|\\x[0-9A-Fa-f]{2}|[ A-Za-z0-9]){6,}"),
    re.compile(r"(?:[01]{8} ?){8,}"),
    re.compile("[\U000e0020-\U000e007e]{4,}"),
    re.compile(r"(?<![0-9A-Za-z])(?:[A-Z2-7]{8}){2,}[A-Z2-7]{0,7}={0,6}"),
    re.compile(r"(?:\b\d{2,3}\b[ ,;]{0,2}){10,}"),
    re.compile(r"(?:\\[0-7]{3}|[ A-Za-z]){6,}"),
    re.compile(r"(?:=[0-9A-F]{2}|[ A-Za-z]){6,}"),
    re.compile(r"(?:[.\u00b7\u2022_-]{1,5}(?: ?[/|] ?| {1,3})){11,}[.\u00b7\u2022_-]{1,5}"),
    re.compile(r"(?:\+[A-Za-z0-9+/]{3,}-?[ A-Za-z]{0,40})+"),
    re.compile(r"[!-~]{30,}"),
)
_CUES: Final = {2: "%", 3: ("\\", "%u"), 8: "\\", 9: "=", 11: "+"}
"""Letters that some of them can't do without: looking for those is a hundred times as fast."""
_READABLE: Final = re.compile(r"[^\x00-\x08\x0e-\x1f\x7f-\x9f]+")
_MAX_RUN_CHARS: Final = 20_000


_VISIBLE: Final = "".join(map(chr, range(33, 127)))
_ROT47: Final = str.maketrans(_VISIBLE, _VISIBLE[47:] + _VISIBLE[:47])
_ROT47_CUES: Final = tuple(word.translate(_ROT47) for word in _TELLTALE)


def _find_encoded(text: str) -> Iterator[tuple[int, int, str]]:
    """Runs in `text` that decode to something readable, and what that is."""
    if any(word in text for word in _ROT47_CUES):
        yield 0, len(text), text.translate(_ROT47)
    for kind, pattern in enumerate(_RUNS):
        if not any(cue in text for cue in _CUES.get(kind, ("",))):
            continue
        for run in pattern.finditer(text):
            plain = _decode(kind, run[0][:_MAX_RUN_CHARS])
            if plain and plain != run[0] and _READABLE.fullmatch(plain):
                yield run.start(), run.end(), plain


def _decode(kind: int, run: str) -> str:
    try:
        return _DECODERS[kind](run)
    except (ValueError, UnicodeError, binascii.Error):
        return ""


def _from_base64(run: str) -> str:
    bare_run = run.rstrip("=").replace("-", "+").replace("_", "/")
    raw = base64.b64decode(bare_run + "=" * (-len(bare_run) % 4))
    # Every second byte is 0 where Latin letters take two.
    return raw.decode("utf-16-le" if raw[1:2] == b"\0" else "utf-8")


def _from_escapes(run: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1] or found[2], 16)), run)


_ESCAPE: Final = re.compile(r"(?:[\\%]u\{?|\\N\{U\+)([0-9A-Fa-f]{4,5})\}?|\\x([0-9A-Fa-f]{2})")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_MORSE_SIGNS: Final = (
    ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- ...- .-- "
    "-..- -.-- --.. ----- .---- ..--- ...-- ....- ..... -.... --... ---.. ----."
)
_MORSE: Final = dict(zip(_MORSE_SIGNS.split(), "abcdefghijklmnopqrstuvwxyz0123456789", strict=True))


def _from_morse(run: str) -> str:
    plain = run.translate(str.maketrans("\u00b7\u2022_", "..-"))
    words = re.split(r"\s*[/|]\s*|\s{3,}", plain.strip(" /|"))
    return " ".join("".join(_MORSE.get(sign, "?") for sign in word.split()) for word in words)


_DECODERS: Final = (
    _from_base64,
    lambda run: bytes.fromhex(re.sub(r"0x|\\x|[ :,]", "", run)).decode(),
    lambda run: unquote(run.replace("+", " "), errors="strict"),
    _from_escapes,
    lambda run: bytes(int(eight, 2) for eight in re.findall("[01]{8}", run)).decode(),
    lambda run: "".join(chr(ord(char) - 0xE0000) for char in run),
    lambda run: base64.b32decode(run.rstrip("=") + "=" * (-len(run.rstrip("=")) % 8)).decode(),
    lambda run: bytes(int(code) for code in re.findall(r"\d+", run)).decode(),
    lambda run: _OCTAL.sub(lambda found: chr(int(found[1], 8)), run),
    lambda run: quopri.decodestring(run.encode()).decode(),
    _from_morse,
    lambda run: run.encode().decode("utf-7"),
    lambda run: base64.b85decode(run).decode(),
)
