//! A generation that does not rise: the fence refuses.

warmhold_sdk::lease_policy!(hostile::lease::Hostile<hostile::lease::GenerationKept>);
