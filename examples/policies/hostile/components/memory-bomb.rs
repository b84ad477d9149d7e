//! Takes all memory: the limit ends it.

warmhold_sdk::lease_policy!(hostile::lease::Hostile<hostile::lease::MemoryBomb>);
