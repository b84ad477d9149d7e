//! One fenced warm replay from request to verdict, and what keeps workers standing.
