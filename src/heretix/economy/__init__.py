"""The economy's rules: ledger, markets, rewards, episodes, exploration.

Pure: integers and `Decimal` in, records out. No database, no clock, no IO; whoever calls
brings the time and writes what comes back.
"""
