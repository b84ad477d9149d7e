//! The same key twice: the fence refuses.

warmhold_sdk::lease_policy!(hostile::lease::Hostile<hostile::lease::DuplicateKeys>);
