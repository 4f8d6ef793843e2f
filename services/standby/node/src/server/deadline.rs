//! How long a call may take (`grpc-timeout`), so that the answer to a wait comes from us, with a reason, just before the client
//! or the server's own timer ends the call without one.

use std::time::Duration;

use tonic::metadata::MetadataMap;

/// Part of the deadline that is left for the answer to travel: a tenth.
const MARGIN_PARTS: u32 = 10;

/// The time that a call may wait; none if the client set no deadline, or one that cannot be read.
pub(super) fn of(metadata: &MetadataMap) -> Option<Duration> {
    let whole = parse(metadata.get("grpc-timeout")?.to_str().ok()?)?;
    Some(whole - whole / MARGIN_PARTS)
}

/// At most eight digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(n * 3600)),
        "M" => Some(Duration::from_secs(n * 60)),
        "S" => Some(Duration::from_secs(n)),
        "m" => Some(Duration::from_millis(n)),
        "u" => Some(Duration::from_micros(n)),
        "n" => Some(Duration::from_nanos(n)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_form_is_eight_digits_and_a_unit() {
        assert_eq!(parse("100m"), Some(Duration::from_millis(100)));
        assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for bad in ["", "m", "1", "-1S", "123456789m", "1é", "1.5S"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_answer_has_time_to_travel() {
        let mut metadata = MetadataMap::new();
        assert_eq!(of(&metadata), None);
        metadata.insert("grpc-timeout", "100m".parse().unwrap());
        assert_eq!(of(&metadata), Some(Duration::from_millis(90)));
    }
}
