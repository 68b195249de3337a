CREATE TABLE accounts (
	id VARCHAR NOT NULL,
	kind VARCHAR NOT NULL,
	currency VARCHAR NOT NULL,
	episode VARCHAR,
	person VARCHAR,
	balance BIGINT NOT NULL,
	created_ms BIGINT NOT NULL,
	CONSTRAINT pk_accounts PRIMARY KEY (id)
);
CREATE INDEX ix_accounts_episode ON accounts (episode);
CREATE INDEX ix_accounts_person ON accounts (person);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE archives (
	archive_id SERIAL NOT NULL,
	lake_id VARCHAR NOT NULL,
	location VARCHAR NOT NULL,
	part VARCHAR NOT NULL,
	CONSTRAINT pk_archives PRIMARY KEY (archive_id),
	CONSTRAINT uq_archives_lake_id_part UNIQUE (lake_id, part)
);
CREATE TABLE attempts (
	subject TEXT NOT NULL,
	count INTEGER NOT NULL,
	since DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_attempts PRIMARY KEY (subject)
);
CREATE INDEX ix_attempts_since ON attempts (since);
CREATE TABLE audit (
	seq BIGSERIAL NOT NULL,
	at VARCHAR NOT NULL,
	person_id VARCHAR,
	who TEXT NOT NULL,
	what VARCHAR NOT NULL,
	subject TEXT,
	address TEXT,
	request_id VARCHAR,
	CONSTRAINT pk_audit PRIMARY KEY (seq)
);
CREATE INDEX ix_audit_what ON audit (what);
CREATE INDEX ix_audit_who ON audit (who);
CREATE TABLE batches (
	batch_id VARCHAR NOT NULL,
	provider VARCHAR NOT NULL,
	model VARCHAR NOT NULL,
	base_url TEXT,
	provider_batch_id VARCHAR,
	state VARCHAR NOT NULL,
	requests INTEGER NOT NULL,
	submitted_at VARCHAR NOT NULL,
	updated_at VARCHAR NOT NULL,
	expires_at VARCHAR,
	submission_id VARCHAR,
	note TEXT,
	CONSTRAINT pk_batches PRIMARY KEY (batch_id),
	CONSTRAINT uq_batches_provider_provider_batch_id UNIQUE (provider, provider_batch_id),
	CONSTRAINT ck_batches_state CHECK (state IN ('submitting', 'submitted', 'collected', 'abandoned'))
);
CREATE INDEX ix_batches_state ON batches (state);
CREATE TABLE budgets (
	budget_id VARCHAR NOT NULL,
	cap_micros BIGINT NOT NULL,
	spent_micros BIGINT NOT NULL,
	presumed_micros BIGINT NOT NULL,
	held_micros BIGINT NOT NULL,
	CONSTRAINT pk_budgets PRIMARY KEY (budget_id)
);
CREATE TABLE bundles (
	bundle_id VARCHAR NOT NULL,
	claim TEXT NOT NULL,
	lens VARCHAR NOT NULL,
	bundle_json TEXT NOT NULL,
	created_at VARCHAR NOT NULL,
	CONSTRAINT pk_bundles PRIMARY KEY (bundle_id)
);
CREATE TABLE chains (
	name VARCHAR NOT NULL,
	number BIGINT NOT NULL,
	hash VARCHAR NOT NULL,
	CONSTRAINT pk_chains PRIMARY KEY (name)
);
CREATE TABLE episodes (
	episode_id VARCHAR NOT NULL,
	claim TEXT NOT NULL,
	claim_id VARCHAR NOT NULL,
	currency VARCHAR NOT NULL,
	state VARCHAR NOT NULL,
	is_open BOOLEAN NOT NULL,
	terms_hash VARCHAR,
	market_money BIGINT,
	market_heretic BIGINT,
	market_orthodox BIGINT,
	position_count INTEGER NOT NULL,
	challenges_seq BIGINT NOT NULL,
	clock_ms BIGINT NOT NULL,
	close_ms BIGINT,
	record_json TEXT NOT NULL,
	record_sha256 VARCHAR NOT NULL,
	secret VARCHAR NOT NULL,
	tally_json TEXT,
	created_ms BIGINT NOT NULL,
	updated_ms BIGINT NOT NULL,
	CONSTRAINT pk_episodes PRIMARY KEY (episode_id)
);
CREATE INDEX ix_episodes_claim_id ON episodes (claim_id);
CREATE INDEX ix_episodes_created_ms ON episodes (created_ms);
CREATE INDEX ix_episodes_state_created_ms ON episodes (state, created_ms);
CREATE TABLE events (
	seq BIGINT NOT NULL,
	chain VARCHAR NOT NULL,
	number BIGINT NOT NULL,
	move VARCHAR NOT NULL,
	rows_json TEXT NOT NULL,
	at_ms BIGINT NOT NULL,
	prev_hash VARCHAR NOT NULL,
	hash VARCHAR NOT NULL,
	root VARCHAR NOT NULL,
	CONSTRAINT pk_events PRIMARY KEY (seq)
);
CREATE INDEX ix_events_chain_seq ON events (chain, seq);
CREATE TABLE exploration_grants (
	claim_id VARCHAR NOT NULL,
	claim TEXT NOT NULL,
	person VARCHAR NOT NULL,
	amount BIGINT NOT NULL,
	found BIGINT NOT NULL,
	day INTEGER NOT NULL,
	week INTEGER NOT NULL,
	evidence_json TEXT NOT NULL,
	at_ms BIGINT NOT NULL,
	CONSTRAINT pk_exploration_grants PRIMARY KEY (claim_id)
);
CREATE INDEX ix_exploration_grants_person_week ON exploration_grants (person, week);
CREATE TABLE idempotency (
	scope TEXT NOT NULL,
	key TEXT NOT NULL,
	body_sha256 VARCHAR NOT NULL,
	status INTEGER,
	response_json TEXT,
	begun_at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_idempotency PRIMARY KEY (scope, key)
);
CREATE INDEX ix_idempotency_begun_at ON idempotency (begun_at);
CREATE TABLE jobs (
	job_id VARCHAR NOT NULL,
	owner_id VARCHAR NOT NULL,
	owner_name TEXT NOT NULL,
	key TEXT,
	request_json TEXT NOT NULL,
	state VARCHAR NOT NULL,
	cancel_requested BOOLEAN NOT NULL,
	revision INTEGER NOT NULL,
	progress_json TEXT NOT NULL,
	bundles_json TEXT,
	budget_micros BIGINT,
	spent_micros BIGINT,
	day VARCHAR NOT NULL,
	worker VARCHAR,
	lease_until DOUBLE PRECISION,
	attempt INTEGER NOT NULL,
	losses INTEGER NOT NULL,
	error TEXT,
	error_kind VARCHAR,
	created_at VARCHAR NOT NULL,
	updated_at VARCHAR NOT NULL,
	started_at VARCHAR,
	finished_at VARCHAR,
	CONSTRAINT pk_jobs PRIMARY KEY (job_id),
	CONSTRAINT uq_jobs_owner_id_key UNIQUE (owner_id, key),
	CONSTRAINT ck_jobs_state CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled'))
);
CREATE INDEX ix_jobs_created_at_job_id ON jobs (created_at, job_id);
CREATE INDEX ix_jobs_owner_id_day ON jobs (owner_id, day);
CREATE INDEX ix_jobs_state_created_at ON jobs (state, created_at);
CREATE TABLE late_samples (
	cache_key VARCHAR NOT NULL,
	owner VARCHAR NOT NULL,
	created_at VARCHAR NOT NULL,
	run_id VARCHAR,
	response_id TEXT,
	tokens_in INTEGER,
	tokens_out INTEGER,
	CONSTRAINT pk_late_samples PRIMARY KEY (cache_key, owner, created_at)
);
CREATE TABLE leases (
	cache_key VARCHAR NOT NULL,
	owner VARCHAR NOT NULL,
	expires_at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_leases PRIMARY KEY (cache_key)
);
CREATE INDEX ix_leases_owner ON leases (owner);
CREATE TABLE panels (
	panel VARCHAR NOT NULL,
	fixed_json TEXT NOT NULL,
	bundles_json TEXT NOT NULL,
	created_at VARCHAR NOT NULL,
	CONSTRAINT pk_panels PRIMARY KEY (panel)
);
CREATE TABLE people (
	person_id VARCHAR NOT NULL,
	name TEXT NOT NULL,
	folded_name TEXT NOT NULL,
	role VARCHAR NOT NULL,
	active BOOLEAN NOT NULL,
	password_hash VARCHAR,
	jobs_per_day INTEGER,
	running_jobs INTEGER,
	usd_micros_per_day BIGINT,
	created_at VARCHAR NOT NULL,
	CONSTRAINT pk_people PRIMARY KEY (person_id),
	CONSTRAINT uq_people_folded_name UNIQUE (folded_name),
	CONSTRAINT ck_people_role CHECK (role IN ('reader', 'explorer', 'operator'))
);
CREATE TABLE prompts (
	prompt_version VARCHAR NOT NULL,
	bank_sha256 VARCHAR NOT NULL,
	source TEXT NOT NULL,
	system TEXT NOT NULL,
	user_template TEXT NOT NULL,
	paraphrases_json TEXT NOT NULL,
	created_at VARCHAR NOT NULL,
	CONSTRAINT pk_prompts PRIMARY KEY (prompt_version)
);
CREATE TABLE rates (
	rate_id VARCHAR NOT NULL,
	request_at DOUBLE PRECISION NOT NULL,
	token_at DOUBLE PRECISION NOT NULL,
	paused_until DOUBLE PRECISION NOT NULL,
	rpm BIGINT,
	tpm BIGINT,
	CONSTRAINT pk_rates PRIMARY KEY (rate_id)
);
CREATE TABLE replies (
	cache_key VARCHAR NOT NULL,
	model VARCHAR NOT NULL,
	text TEXT NOT NULL,
	finish VARCHAR NOT NULL,
	provider_model_id TEXT,
	response_id TEXT,
	tokens_in INTEGER,
	tokens_out INTEGER,
	created_at VARCHAR NOT NULL,
	CONSTRAINT pk_replies PRIMARY KEY (cache_key)
);
CREATE TABLE runs (
	run_id VARCHAR NOT NULL,
	claim TEXT NOT NULL,
	model VARCHAR NOT NULL,
	provider VARCHAR NOT NULL,
	prompt_version VARCHAR NOT NULL,
	lens VARCHAR DEFAULT 'RPL' NOT NULL,
	bundle_id VARCHAR,
	variant VARCHAR,
	"K" INTEGER NOT NULL,
	"R" INTEGER NOT NULL,
	"T" INTEGER NOT NULL,
	"B" INTEGER NOT NULL,
	seed VARCHAR(20),
	bootstrap_seed VARCHAR(20),
	prob_true_rpl DOUBLE PRECISION,
	ci_lo DOUBLE PRECISION,
	ci_hi DOUBLE PRECISION,
	ci_width DOUBLE PRECISION,
	stability_score DOUBLE PRECISION,
	stability_band VARCHAR,
	is_stable BOOLEAN,
	template_iqr_logit DOUBLE PRECISION,
	imbalance_ratio DOUBLE PRECISION,
	rpl_compliance_rate DOUBLE PRECISION,
	cache_hit_rate DOUBLE PRECISION,
	counts_by_template_json TEXT,
	sampler_json TEXT,
	config_json TEXT NOT NULL,
	execution_id VARCHAR NOT NULL,
	created_at VARCHAR NOT NULL,
	updated_at VARCHAR NOT NULL,
	claim_sha256 VARCHAR DEFAULT '' NOT NULL,
	CONSTRAINT pk_runs PRIMARY KEY (run_id)
);
CREATE INDEX ix_runs_claim_sha256_updated_at ON runs (claim_sha256, updated_at);
CREATE INDEX ix_runs_updated_at ON runs (updated_at);
CREATE TABLE statements (
	group_id VARCHAR NOT NULL,
	episode_id VARCHAR,
	move VARCHAR NOT NULL,
	request_hash VARCHAR NOT NULL,
	subject INTEGER,
	lines_json TEXT NOT NULL,
	first_seq BIGINT NOT NULL,
	at_ms BIGINT NOT NULL,
	CONSTRAINT pk_statements PRIMARY KEY (group_id)
);
CREATE INDEX ix_statements_episode_id_first_seq ON statements (episode_id, first_seq);
CREATE TABLE archived_samples (
	cache_key BYTEA NOT NULL,
	prompt_sha256 BYTEA NOT NULL,
	archive_id INTEGER NOT NULL,
	CONSTRAINT pk_archived_samples PRIMARY KEY (cache_key),
	CONSTRAINT fk_archived_samples_archive_id FOREIGN KEY(archive_id) REFERENCES archives (archive_id)
);
CREATE TABLE challenges (
	episode_id VARCHAR NOT NULL,
	number INTEGER NOT NULL,
	account VARCHAR NOT NULL,
	commitment VARCHAR NOT NULL,
	stake BIGINT NOT NULL,
	least BIGINT NOT NULL,
	at_ms BIGINT NOT NULL,
	direction VARCHAR,
	bundle_sha256 VARCHAR,
	nonce VARCHAR,
	fate VARCHAR NOT NULL,
	event_seq BIGINT NOT NULL,
	sha256 VARCHAR NOT NULL,
	CONSTRAINT pk_challenges PRIMARY KEY (episode_id, number),
	CONSTRAINT fk_challenges_episode_id FOREIGN KEY(episode_id) REFERENCES episodes (episode_id),
	CONSTRAINT fk_challenges_account FOREIGN KEY(account) REFERENCES accounts (id)
);
CREATE INDEX ix_challenges_episode_id_event_seq ON challenges (episode_id, event_seq);
CREATE TABLE episode_measurements (
	episode_id VARCHAR NOT NULL,
	stage VARCHAR NOT NULL,
	measurement_json TEXT NOT NULL,
	executions_json TEXT NOT NULL,
	bundle_id VARCHAR,
	at_ms BIGINT NOT NULL,
	CONSTRAINT pk_episode_measurements PRIMARY KEY (episode_id, stage),
	CONSTRAINT fk_episode_measurements_episode_id FOREIGN KEY(episode_id) REFERENCES episodes (episode_id)
);
CREATE TABLE executions (
	execution_id VARCHAR NOT NULL,
	run_id VARCHAR NOT NULL,
	claim TEXT NOT NULL,
	model VARCHAR NOT NULL,
	config_json TEXT NOT NULL,
	created_at VARCHAR NOT NULL,
	CONSTRAINT pk_executions PRIMARY KEY (execution_id),
	CONSTRAINT fk_executions_run_id FOREIGN KEY(run_id) REFERENCES runs (run_id)
);
CREATE INDEX ix_executions_run_id_created_at ON executions (run_id, created_at);
CREATE TABLE holds (
	budget_id VARCHAR NOT NULL,
	owner VARCHAR NOT NULL,
	held_micros BIGINT NOT NULL,
	lapsed BOOLEAN NOT NULL,
	expires_at DOUBLE PRECISION NOT NULL,
	stroke VARCHAR,
	granted_micros BIGINT,
	CONSTRAINT pk_holds PRIMARY KEY (budget_id, owner),
	CONSTRAINT fk_holds_budget_id FOREIGN KEY(budget_id) REFERENCES budgets (budget_id)
);
CREATE INDEX ix_holds_owner ON holds (owner);
CREATE TABLE job_runs (
	job_id VARCHAR NOT NULL,
	run_id VARCHAR NOT NULL,
	execution_id VARCHAR NOT NULL,
	claim TEXT NOT NULL,
	model VARCHAR NOT NULL,
	lens VARCHAR NOT NULL,
	variant VARCHAR,
	status VARCHAR NOT NULL,
	prob_true DOUBLE PRECISION,
	ci_lo DOUBLE PRECISION,
	ci_hi DOUBLE PRECISION,
	reason TEXT,
	finished_at VARCHAR NOT NULL,
	CONSTRAINT pk_job_runs PRIMARY KEY (job_id, run_id),
	CONSTRAINT fk_job_runs_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id)
);
CREATE TABLE positions (
	episode_id VARCHAR NOT NULL,
	number INTEGER NOT NULL,
	account VARCHAR NOT NULL,
	side VARCHAR NOT NULL,
	stake BIGINT NOT NULL,
	shares BIGINT NOT NULL,
	at_ms BIGINT NOT NULL,
	house BOOLEAN NOT NULL,
	CONSTRAINT pk_positions PRIMARY KEY (episode_id, number),
	CONSTRAINT ck_positions_side CHECK (side IN ('heretic', 'orthodox')),
	CONSTRAINT fk_positions_episode_id FOREIGN KEY(episode_id) REFERENCES episodes (episode_id),
	CONSTRAINT fk_positions_account FOREIGN KEY(account) REFERENCES accounts (id)
);
CREATE INDEX ix_positions_account ON positions (account);
CREATE TABLE reputation_events (
	episode_id VARCHAR NOT NULL,
	kind VARCHAR NOT NULL,
	number INTEGER NOT NULL,
	account VARCHAR NOT NULL,
	passed BOOLEAN,
	amount BIGINT,
	scale BIGINT,
	at_ms BIGINT NOT NULL,
	CONSTRAINT pk_reputation_events PRIMARY KEY (episode_id, kind, number),
	CONSTRAINT ck_reputation_events_kind CHECK (kind IN ('attempt', 'reward')),
	CONSTRAINT fk_reputation_events_episode_id FOREIGN KEY(episode_id) REFERENCES episodes (episode_id)
);
CREATE INDEX ix_reputation_events_account_at_ms ON reputation_events (account, at_ms);
CREATE TABLE samples (
	cache_key VARCHAR NOT NULL,
	run_id VARCHAR NOT NULL,
	prompt_sha256 VARCHAR NOT NULL,
	paraphrase_idx INTEGER NOT NULL,
	replicate_idx INTEGER NOT NULL,
	prob_true DOUBLE PRECISION,
	logit DOUBLE PRECISION,
	json_valid BOOLEAN NOT NULL,
	noncompliance VARCHAR,
	raw_answer TEXT,
	error TEXT,
	provider_model_id TEXT,
	response_id TEXT,
	fingerprint TEXT,
	tokens_in INTEGER,
	tokens_out INTEGER,
	temperature DOUBLE PRECISION,
	attempts INTEGER NOT NULL,
	latency_ms INTEGER NOT NULL,
	created_at VARCHAR NOT NULL,
	CONSTRAINT pk_samples PRIMARY KEY (cache_key),
	CONSTRAINT fk_samples_run_id FOREIGN KEY(run_id) REFERENCES runs (run_id)
);
CREATE INDEX ix_samples_run_id ON samples (run_id);
CREATE TABLE sessions (
	token_sha256 VARCHAR NOT NULL,
	person_id VARCHAR NOT NULL,
	created_at DOUBLE PRECISION NOT NULL,
	seen_at DOUBLE PRECISION NOT NULL,
	expires_at DOUBLE PRECISION NOT NULL,
	address TEXT,
	CONSTRAINT pk_sessions PRIMARY KEY (token_sha256),
	CONSTRAINT fk_sessions_person_id FOREIGN KEY(person_id) REFERENCES people (person_id)
);
CREATE INDEX ix_sessions_expires_at ON sessions (expires_at);
CREATE INDEX ix_sessions_person_id ON sessions (person_id);
CREATE TABLE tokens (
	token_id VARCHAR NOT NULL,
	token_sha256 VARCHAR NOT NULL,
	person_id VARCHAR NOT NULL,
	label TEXT NOT NULL,
	role VARCHAR NOT NULL,
	created_at VARCHAR NOT NULL,
	expires_at DOUBLE PRECISION,
	last_used_at DOUBLE PRECISION,
	revoked_at VARCHAR,
	CONSTRAINT pk_tokens PRIMARY KEY (token_id),
	CONSTRAINT uq_tokens_token_sha256 UNIQUE (token_sha256),
	CONSTRAINT ck_tokens_role CHECK (role IN ('reader', 'explorer', 'operator')),
	CONSTRAINT fk_tokens_person_id FOREIGN KEY(person_id) REFERENCES people (person_id)
);
CREATE INDEX ix_tokens_person_id ON tokens (person_id);
CREATE TABLE transfers (
	seq BIGINT NOT NULL,
	id VARCHAR NOT NULL,
	body_hash VARCHAR NOT NULL,
	debit VARCHAR NOT NULL,
	credit VARCHAR NOT NULL,
	amount BIGINT NOT NULL,
	currency VARCHAR NOT NULL,
	code VARCHAR NOT NULL,
	episode VARCHAR,
	group_id VARCHAR NOT NULL,
	prev_hash VARCHAR NOT NULL,
	hash VARCHAR NOT NULL,
	at_ms BIGINT NOT NULL,
	CONSTRAINT pk_transfers PRIMARY KEY (seq),
	CONSTRAINT ck_transfers_amount CHECK (amount > 0),
	CONSTRAINT fk_transfers_debit FOREIGN KEY(debit) REFERENCES accounts (id),
	CONSTRAINT fk_transfers_credit FOREIGN KEY(credit) REFERENCES accounts (id)
);
CREATE INDEX ix_transfers_credit_seq ON transfers (credit, seq);
CREATE INDEX ix_transfers_debit_seq ON transfers (debit, seq);
CREATE INDEX ix_transfers_episode_seq ON transfers (episode, seq);
CREATE INDEX ix_transfers_group_id ON transfers (group_id);
CREATE UNIQUE INDEX ix_transfers_id ON transfers (id);
CREATE TABLE waves (
	panel VARCHAR NOT NULL,
	wave INTEGER NOT NULL,
	started_at VARCHAR NOT NULL,
	finished_at VARCHAR,
	CONSTRAINT pk_waves PRIMARY KEY (panel, wave),
	CONSTRAINT fk_waves_panel FOREIGN KEY(panel) REFERENCES panels (panel)
);
CREATE TABLE archived_records (
	execution_id VARCHAR NOT NULL,
	archive_id INTEGER NOT NULL,
	summary_json TEXT NOT NULL,
	CONSTRAINT pk_archived_records PRIMARY KEY (execution_id),
	CONSTRAINT fk_archived_records_execution_id FOREIGN KEY(execution_id) REFERENCES executions (execution_id),
	CONSTRAINT fk_archived_records_archive_id FOREIGN KEY(archive_id) REFERENCES archives (archive_id)
);
CREATE TABLE batch_samples (
	execution_id VARCHAR NOT NULL,
	cache_key VARCHAR NOT NULL,
	batch_id VARCHAR,
	owned BOOLEAN NOT NULL,
	collected_at VARCHAR,
	error TEXT,
	CONSTRAINT pk_batch_samples PRIMARY KEY (execution_id, cache_key),
	CONSTRAINT fk_batch_samples_execution_id FOREIGN KEY(execution_id) REFERENCES executions (execution_id),
	CONSTRAINT fk_batch_samples_batch_id FOREIGN KEY(batch_id) REFERENCES batches (batch_id)
);
CREATE INDEX ix_batch_samples_batch_id ON batch_samples (batch_id);
CREATE TABLE execution_samples (
	cache_key VARCHAR NOT NULL,
	execution_id VARCHAR NOT NULL,
	from_cache BOOLEAN NOT NULL,
	CONSTRAINT pk_execution_samples PRIMARY KEY (cache_key, execution_id),
	CONSTRAINT fk_execution_samples_cache_key FOREIGN KEY(cache_key) REFERENCES samples (cache_key),
	CONSTRAINT fk_execution_samples_execution_id FOREIGN KEY(execution_id) REFERENCES executions (execution_id)
);
CREATE TABLE results (
	execution_id VARCHAR NOT NULL,
	status VARCHAR NOT NULL,
	finished_at VARCHAR NOT NULL,
	record_json TEXT NOT NULL,
	CONSTRAINT pk_results PRIMARY KEY (execution_id),
	CONSTRAINT ck_results_status CHECK (status IN ('ok', 'no_estimate', 'interrupted')),
	CONSTRAINT fk_results_execution_id FOREIGN KEY(execution_id) REFERENCES executions (execution_id)
);
CREATE TABLE wave_runs (
	panel VARCHAR NOT NULL,
	wave INTEGER NOT NULL,
	execution_id VARCHAR NOT NULL,
	claim TEXT NOT NULL,
	model VARCHAR NOT NULL,
	lens VARCHAR NOT NULL,
	prob_true DOUBLE PRECISION,
	ci_lo DOUBLE PRECISION,
	ci_hi DOUBLE PRECISION,
	cells_json TEXT NOT NULL,
	beside_json TEXT NOT NULL,
	served_json TEXT NOT NULL,
	attempted INTEGER NOT NULL,
	answered INTEGER NOT NULL,
	finished_at VARCHAR NOT NULL,
	CONSTRAINT pk_wave_runs PRIMARY KEY (panel, wave, execution_id),
	CONSTRAINT fk_wave_runs_panel FOREIGN KEY(panel, wave) REFERENCES waves (panel, wave),
	CONSTRAINT fk_wave_runs_execution_id FOREIGN KEY(execution_id) REFERENCES executions (execution_id)
);
INSERT INTO alembic_version VALUES ('0001');
INSERT INTO chains (name, number, hash) VALUES ('common', 0, '0000000000000000000000000000000000000000000000000000000000000000');
INSERT INTO chains (name, number, hash) VALUES ('root', 0, '0000000000000000000000000000000000000000000000000000000000000000');
INSERT INTO chains (name, number, hash) VALUES ('transfers', 0, '0000000000000000000000000000000000000000000000000000000000000000');
