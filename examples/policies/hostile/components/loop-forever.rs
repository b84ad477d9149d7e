//! Never answers while it holds a lease: ended, and the host quarantines.

warmhold_sdk::replay_policy!(hostile::replay::Hostile<hostile::replay::LoopForever>);
