//! Traps while it holds a lease: the host quarantines.

warmhold_sdk::replay_policy!(hostile::replay::Hostile<hostile::replay::PanicHolding>);
