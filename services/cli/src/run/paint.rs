//! What a terminal can show: colours where they are wanted, and tables that fit.

use std::io::IsTerminal;

use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table, presets};

/// Columns that everything fits into.
pub const COLUMNS: usize = 120;

/// Colours, or none: none when the output is no terminal, when NO_COLOR is set to anything, and on a dumb terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint {
    /// Whether escape sequences are written.
    on: bool,
}

impl Paint {
    /// What standard output can show.
    #[must_use]
    pub fn for_stdout() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_some_and(|term| term == "dumb");
        Self { on: std::io::stdout().is_terminal() && set("NO_COLOR").is_none() && !dumb }
    }

    /// No colours.
    #[must_use]
    pub fn plain() -> Self {
        Self { on: false }
    }

    /// Text in the manner of an SGR parameter.
    fn sgr(self, parameter: &str, text: &str) -> String {
        if self.on { format!("\u{1b}[{parameter}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    /// What to read first.
    #[must_use]
    pub fn strong(self, text: &str) -> String {
        self.sgr("1", text)
    }

    /// What to read last.
    #[must_use]
    pub fn dim(self, text: &str) -> String {
        self.sgr("2", text)
    }

    /// Cheap.
    #[must_use]
    pub fn good(self, text: &str) -> String {
        self.sgr("32", text)
    }

    /// Dear, or wrong.
    #[must_use]
    pub fn bad(self, text: &str) -> String {
        self.sgr("31", text)
    }

    /// A heading over the whole width: name, a line about it, a rule.
    #[must_use]
    pub fn heading(self, name: &str, about: &str) -> String {
        let taken = 4 + name.chars().count() + 2 + about.chars().count() + 1;
        let rule = "─".repeat(COLUMNS.saturating_sub(taken).max(2));
        format!("{} {}  {about} {}", self.dim("───"), self.strong(name), self.dim(&rule))
    }
}

/// How a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Text, to the left.
    Left,
    /// Numbers, to the right.
    Right,
}

/// How a text is to strike the eye.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    #[default]
    Plain,
    /// To be read first.
    Strong,
    /// To be read last.
    Dim,
    /// Cheap.
    Good,
    /// Dear, or wrong.
    Bad,
}

/// A text of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// What it says.
    pub text: String,
    /// How.
    pub tone: Tone,
}

impl Text {
    /// A text in a tone.
    pub fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

impl<T: Into<String>> From<T> for Text {
    fn from(text: T) -> Self {
        Self::new(text, Tone::Plain)
    }
}

/// A table without lines, set in by two columns.
#[must_use]
pub fn table(head: &[(&str, Column)], rows: &[Vec<Text>], paint: Paint) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if paint.on {
        table.enforce_styling()
    } else {
        table.force_no_tty()
    };
    table.set_header(head.iter().map(|(title, column)| cell(&Text::new(*title, Tone::Dim), *column)));
    for row in rows {
        table.add_row(row.iter().zip(head).map(|(text, (_, column))| cell(text, *column)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| format!("  {}", line.trim_end())).collect::<Vec<_>>().join("\n")
}

/// A cell that stands as its column does.
fn cell(text: &Text, column: Column) -> Cell {
    let cell = Cell::new(&text.text).set_alignment(match column {
        Column::Left => CellAlignment::Left,
        Column::Right => CellAlignment::Right,
    });
    match text.tone {
        Tone::Plain => cell,
        Tone::Strong => cell.add_attribute(Attribute::Bold),
        Tone::Dim => cell.add_attribute(Attribute::Dim),
        Tone::Good => cell.fg(Color::Green),
        Tone::Bad => cell.fg(Color::Red),
    }
}

/// A bar of at most `width` columns for `value` of `max`, in eighths of a column; anything above 0 shows at least a sliver.
#[must_use]
pub fn bar(value: u64, max: u64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if value == 0 || max == 0 {
        return String::new();
    }
    let eighths = ((value.min(max) as f64 / max as f64) * (width * 8) as f64).round().max(1.0) as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS.get(eighths % 8).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_colours_there_are_no_escapes_and_with_them_the_text_is_the_same() {
        let plain = Paint::plain();
        let text = [plain.strong("a"), plain.dim("b"), plain.good("c"), plain.bad("d"), plain.heading("e", "f")].concat();
        assert!(!text.contains('\u{1b}') && text.starts_with("abcd─── e  f ─"), "{text}");
        assert_eq!(Paint { on: true }.bad("x"), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!(plain.heading("e", "f").chars().count(), COLUMNS);
    }

    #[test]
    fn columns_line_up_with_and_without_colours() {
        let head = [("name", Column::Left), ("count", Column::Right)];
        let rows = vec![vec!["a".into(), Text::new("1", Tone::Bad)], vec!["größer".into(), "1,000".into()]];
        let text = table(&head, &rows, Paint::plain());
        assert_eq!(text, "  name    count\n  a           1\n  größer  1,000");
        let coloured = table(&head, &rows, Paint { on: true });
        assert!(coloured.contains('\u{1b}') && coloured.contains("größer") && coloured.contains("1,000"), "{coloured:?}");
    }

    #[test]
    fn bars_are_in_proportion() {
        assert_eq!(bar(0, 10, 4), "");
        assert_eq!(bar(10, 10, 4), "████");
        assert_eq!(bar(5, 10, 4), "██");
        assert_eq!(bar(1, 1_000_000, 4), "▏");
        assert_eq!(bar(20, 10, 2), "██");
    }
}
