//! Timelines: which ancestors one WAL is made of (`access/transam/timeline.c`, `readTimeLineHistory`).
//!
//! A promoted standby or a recovery to a point in time goes on under a new timeline, so that two ways to continue one WAL do not
//! overwrite each other. The new timeline's history file names its ancestors and where each was left. A segment counts only as far
//! as its timeline had not been left there.
//!
//! Invariants:
//! * I1 The newest timeline comes first; ids fall and begins never rise from one to the next.
//! * I2 The oldest one begins at 0.

use pg_types::Lsn;

use crate::segment::SegmentName;

/// The timelines that make up one WAL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineHistory {
    /// Newest first, each with the position from which on it counts.
    timelines: Vec<(u32, Lsn)>,
}

/// A history file that is none (`FATAL: syntax error in history file`).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the history of timeline {timeline}: {reason}")]
pub struct HistoryError {
    /// Whose history.
    pub timeline: u32,
    /// Which line, from 1.
    pub line: usize,
    /// What is wrong and what is expected.
    pub reason: String,
}

impl TimelineHistory {
    /// A timeline without ancestors.
    #[must_use]
    pub fn alone(timeline: u32) -> Self {
        Self { timelines: vec![(timeline, Lsn::INVALID)] }
    }

    /// Reads a history file: a line per ancestor, oldest first, with the position at which it was left and a reason for people.
    ///
    /// # Errors
    /// A line lacks its timeline or position, or timelines or positions do not rise.
    pub fn parse(timeline: u32, text: &str) -> Result<Self, HistoryError> {
        let mut timelines = Vec::new();
        let (mut begin, mut newest) = (Lsn::INVALID, 0);
        for (index, line) in text.lines().enumerate() {
            let wrong = |reason: String| HistoryError { timeline, line: index + 1, reason };
            let line = line.trim_start();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split_whitespace();
            let id = words.next().and_then(|w| w.parse::<u32>().ok()).filter(|id| *id > 0);
            let id = id.ok_or_else(|| wrong("expected the number of a timeline".to_owned()))?;
            let left = words.next().and_then(|w| w.parse::<Lsn>().ok());
            let left = left.ok_or_else(|| wrong("expected where the timeline was left, as 0/16B3D80".to_owned()))?;
            if id <= newest || id >= timeline {
                return Err(wrong(format!("timeline {id} must be above {newest} and below {timeline}")));
            }
            if left < begin {
                return Err(wrong(format!("timeline {id} was left at {left}, before it began at {begin}")));
            }
            timelines.push((id, begin));
            (begin, newest) = (left, id);
        }
        timelines.push((timeline, begin));
        timelines.reverse();
        Ok(Self { timelines })
    }

    /// The newest timeline.
    #[must_use]
    pub fn newest(&self) -> u32 {
        self.timelines.first().map_or(0, |(timeline, _)| *timeline)
    }

    /// The timelines, newest first, each with the position from which on it counts.
    #[must_use]
    pub fn timelines(&self) -> &[(u32, Lsn)] {
        &self.timelines
    }

    /// Whether a timeline is one of these.
    #[must_use]
    pub fn contains(&self, timeline: u32) -> bool {
        self.timelines.iter().any(|(t, _)| *t == timeline)
    }

    /// Where a timeline was left for the next one; nothing for the newest and for strangers.
    #[must_use]
    pub fn left_at(&self, timeline: u32) -> Option<Lsn> {
        let index = self.timelines.iter().position(|(t, _)| *t == timeline)?;
        self.timelines.get(index.checked_sub(1)?).map(|(_, begin)| *begin)
    }

    /// Whether the segment `name` that starts at `start` holds anything of this WAL.
    #[must_use]
    pub fn counts(&self, name: SegmentName, start: Lsn, segment_size: u32) -> bool {
        let end = start.0.saturating_add(u64::from(segment_size));
        let begins = self.timelines.iter().any(|(timeline, begin)| *timeline == name.timeline && end > begin.0);
        begins && self.left_at(name.timeline).is_none_or(|left| start < left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u32 = 1 << 20;

    fn counts(history: &TimelineHistory, timeline: u32, start: u64) -> bool {
        history.counts(SegmentName::of(timeline, Lsn(start), SIZE), Lsn(start), SIZE)
    }

    #[test]
    fn a_history_names_its_ancestors() {
        let text = "1\t0/2800000\tno recovery target specified\n\n# a remark\n  2\t0/3000000\tbefore 2000-01-01\n";
        let history = TimelineHistory::parse(4, text).unwrap();
        assert_eq!(history.timelines(), [(4, Lsn(0x300_0000)), (2, Lsn(0x280_0000)), (1, Lsn(0))]);
        assert_eq!((history.newest(), history.contains(2), history.contains(3)), (4, true, false));
        assert_eq!((history.left_at(1), history.left_at(2)), (Some(Lsn(0x280_0000)), Some(Lsn(0x300_0000))));
        assert_eq!((history.left_at(4), history.left_at(3)), (None, None));
    }

    #[test]
    fn segments_count_while_their_timeline_was_followed() {
        let history = TimelineHistory::parse(2, "1\t0/280000\t\n").unwrap();
        assert!(counts(&history, 1, 0x10_0000) && counts(&history, 1, 0x20_0000), "up to the one in which it was left");
        assert!(!counts(&history, 1, 0x30_0000), "what the old timeline wrote later is another WAL");
        assert!(counts(&history, 2, 0x20_0000) && counts(&history, 2, 0x30_0000));
        assert!(!counts(&history, 2, 0x10_0000) && !counts(&history, 3, 0x30_0000));
        assert!(counts(&TimelineHistory::alone(3), 3, 0));
    }

    #[test]
    fn lines_that_cannot_be_are_named() {
        for (text, line, part) in [
            ("x\t0/1\n", 1, "number of a timeline"),
            ("0\t0/1\n", 1, "number of a timeline"),
            ("1\t0/1\n2 here\n", 2, "where the timeline was left"),
            ("1\t0/100\n2\t0/50\n", 2, "before it began"),
            ("2\t0/100\n1\t0/200\n", 2, "must be above 2"),
            ("5\t0/100\n", 1, "below 5"),
        ] {
            let error = TimelineHistory::parse(5, text).unwrap_err();
            assert!(error.line == line && error.to_string().contains(part), "{text:?}: {error}");
        }
    }
}
