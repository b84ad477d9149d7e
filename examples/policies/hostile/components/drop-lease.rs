//! Drops its lease: the host quarantines.

warmhold_sdk::replay_policy!(hostile::replay::Hostile<hostile::replay::DropLease>);
