//! `[[publications]]` with parameters put in.

use super::PublicationPlan;
use super::at::At;
use super::file::PublicationsFile;
use super::resolve::{Resolver, Said};
use super::template::Template;

/// Most publications that one entry makes, times the tables that each of them has.
const PUBLISHED_MAX: u64 = 200_000;

impl Resolver<'_> {
    /// One `[[publications]]`.
    pub(super) fn publications(&self, file: &PublicationsFile) -> Option<PublicationPlan> {
        let name = self.at(&file.name, |name| self.template(name))?;
        let tables: Vec<_> = file.tables.iter().filter_map(|table| self.published(table, &name)).collect();
        let numbers = name.pattern().unwrap_or((1, 1));
        if name.counts() && name.pattern().is_none() {
            self.error(file.name.span(), "say how many publications there are by a pattern, as 'p_{1..10}'");
        }
        let count = |(first, last): (u64, u64)| last.saturating_sub(first).saturating_add(1);
        let each = tables.iter().map(|(_, numbers)| numbers.map_or(1, count)).fold(0, u64::saturating_add);
        let all = count(numbers).saturating_mul(each.max(1));
        if all > PUBLISHED_MAX {
            self.error(file.name.span(), format!("{all} published tables are too many: at most {PUBLISHED_MAX} in one entry"));
        }
        if usize::from(!tables.is_empty()) + usize::from(file.all_tables) + usize::from(file.schema.is_some()) > 1 {
            self.error(file.name.span(), "a publication has one of 'tables', 'all_tables' and 'schema'");
        }
        let schema = self.optional(&file.schema, |schema| match schema.as_str() {
            "public" => Ok(schema.clone()),
            _ => Err("the only schema before the log begins is 'public'".to_owned()),
        });
        Some(PublicationPlan { name, numbers, tables, all_tables: file.all_tables, schema })
    }

    /// A table of publications with this name, and the numbers that it stands for in each.
    fn published(&self, table: &At<String>, name: &Template) -> Option<(Template, Option<(u64, u64)>)> {
        self.step.replace(table.span());
        let read = |text: &String| -> Said<(Template, Option<(u64, u64)>)> {
            let template = self.relation(text)?;
            match (template.pattern(), name.pattern()) {
                (Some(of_table), Some(of_name)) if of_table != of_name => Err(format!(
                    "the pattern of '{text}' differs from that of the publications: each has the table of its number"
                )),
                (Some(numbers), None) => Ok((template, Some(numbers))),
                (None, None) if template.counts() => Err(format!("'{text}' counts, and nothing says how far: write a pattern")),
                _ => Ok((template, None)),
            }
        };
        self.at(table, read)
    }
}
