"""Points, cases, timers, statistics, records and the machine."""
