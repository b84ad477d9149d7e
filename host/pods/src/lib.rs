//! Where workers live: pods behind one trait.
