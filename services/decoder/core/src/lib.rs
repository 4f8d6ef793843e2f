//! Reorder buffer, caches, invalidation paths and profiles of the decoder; pure.
