//! Scenario engine, catalog model, transactions and proc array of the primary; pure.
