//! The decoder: follows a primary, decodes like a walsender, serves subscribers.
