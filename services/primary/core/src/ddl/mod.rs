//! Statements that change the catalog, as sequences of catalog changes and command ends (`commands/tablecmds.c`,
//! `catalog/heap.c`, `catalog/index.c`, `commands/indexcmds.c`, `commands/sequence.c`, `catalog/aclchk.c`).
//!
//! Each is written down from the order in which the server touches its catalogs; `tests/real_statements.rs` compares them record
//! by record with what PostgreSQL 18 wrote.
//!
//! | file | statements |
//! |---|---|
//! | `create_table` | CREATE TABLE, with sequences, defaults, constraints, TOAST table; PARTITION OF |
//! | `create_index` | CREATE INDEX; the build and its statistics |
//! | `truncate` | TRUNCATE |
//! | `alter` | ALTER TABLE ADD COLUMN, GRANT |
//! | `column` | what a column is |
//! | `rows` | makes catalog rows |

pub(crate) mod alter;
pub(crate) mod column;
pub(crate) mod create_index;
pub(crate) mod create_table;
mod rows;
pub(crate) mod truncate;
