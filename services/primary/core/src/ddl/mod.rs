//! Statements that change the catalog, as sequences of catalog changes and command ends (`commands/tablecmds.c`,
//! `catalog/heap.c`, `catalog/index.c`, `catalog/dependency.c` …).
//!
//! Each is written down from the order in which the server touches its catalogs; `tests/statements.rs` compares them record by
//! record with what PostgreSQL 13 to 18 wrote.
//!
//! | file | statements |
//! |---|---|
//! | `create_table` | CREATE TABLE, with sequences, defaults, constraints, TOAST table; PARTITION OF |
//! | `heap` | new relations of every kind, TOAST tables |
//! | `create_index` | CREATE INDEX; the build and its statistics |
//! | `concurrently` | CREATE INDEX, DROP INDEX, REINDEX with CONCURRENTLY |
//! | `alter_column` | ALTER TABLE … COLUMN |
//! | `alter_table` | RENAME, SET (…), REPLICA IDENTITY, GRANT, REVOKE, COMMENT |
//! | `constraint`, `foreign_key`, `trigger`, `partition`, `sequence` | what their names say |
//! | `inherit` | INHERIT, NO INHERIT, SET SCHEMA |
//! | `rewrite` | ALTER COLUMN TYPE, VACUUM FULL, CLUSTER: a table written anew |
//! | `truncate` | TRUNCATE, REINDEX |
//! | `view` | views and materialized views |
//! | `types` | types, functions, schemas |
//! | `publication` | publications |
//! | `policy`, `statistics`, `role` | policies and rules, statistics objects, roles and owners |
//! | `dependency`, `remove` | DROP of everything: what depends on it, what goes with it |
//! | `column` | what a column is |
//! | `rows` | makes catalog rows |
//! | `object`, `object_action` | all statements on objects by name |

pub(crate) mod alter_column;
pub(crate) mod alter_table;
pub(crate) mod column;
pub(crate) mod concurrently;
pub(crate) mod constraint;
pub(crate) mod create_index;
pub(crate) mod create_table;
pub(crate) mod dependency;
pub(crate) mod foreign_key;
mod heap;
mod inherit;
pub(crate) mod object;
mod object_action;
mod partition;
mod policy;
pub(crate) mod publication;
mod remove;
mod rewrite;
mod role;
mod rows;
mod run;
mod run_part;
mod sequence;
mod statistics;
mod trigger;
pub(crate) mod truncate;
mod types;
mod view;
