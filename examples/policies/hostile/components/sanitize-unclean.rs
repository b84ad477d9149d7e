//! Sanitizes without proof: refused.

warmhold_sdk::replay_policy!(hostile::replay::Hostile<hostile::replay::SanitizeUnclean>);
