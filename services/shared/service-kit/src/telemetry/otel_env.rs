//! The variables of OpenTelemetry's specification, as settings: a layer above the defaults, below file, own variables and flags.
//!
//! Endpoints are looked for by [`super::choose_export`]; headers, timeout and compression are read by the exporter itself, attributes of the resource
//! by the SDK.

/// A variable that says something wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// The variable.
    pub(crate) name: &'static str,
    /// What it may be.
    pub(crate) expected: &'static str,
}

/// What a variable sets: a field and its value as the file would have it.
type Setting = (&'static str, String);

/// The settings that `var` makes, with the variable that each is from.
///
/// # Errors
/// A variable has a value that is none of its.
pub(crate) fn settings(var: impl Fn(&str) -> Option<String>) -> Result<Vec<(&'static str, Setting)>, Wrong> {
    let var = |name: &str| var(name).filter(|value| !value.is_empty());
    let mut settings = Vec::new();
    for (name, field, read) in VARIABLES {
        if let Some(value) = var(name) {
            let (expected, value) = (read.expected(), read.value(&value, &var));
            match value {
                Some(Some(value)) => settings.push((*name, (*field, value))),
                Some(None) => {}
                None => return Err(Wrong { name, expected }),
            }
        }
    }
    Ok(settings)
}

/// How a variable is read.
#[derive(Clone, Copy, Debug)]
enum Read {
    /// Any text.
    Text,
    /// A number above 0.
    Number,
    /// Milliseconds.
    Millis,
    /// True switches everything off.
    Disabled,
    /// Exporters, of which one is known, or none.
    Exporter,
    /// The encoding on the wire.
    Protocol,
    /// A sampler, whose ratio another variable has.
    Sampler,
}

/// The variables, the more specific one of two behind the other, since the last one counts.
const VARIABLES: &[(&str, &str, Read)] = &[
    ("OTEL_SERVICE_NAME", "telemetry.service_name", Read::Text),
    ("OTEL_BSP_MAX_QUEUE_SIZE", "telemetry.queue_spans", Read::Number),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "telemetry.batch_spans", Read::Number),
    ("OTEL_BSP_SCHEDULE_DELAY", "telemetry.export_interval", Read::Millis),
    ("OTEL_TRACES_SAMPLER", "telemetry.sampling.ratio", Read::Sampler),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "telemetry.protocol", Read::Protocol),
    ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "telemetry.protocol", Read::Protocol),
    ("OTEL_TRACES_EXPORTER", "telemetry.enabled", Read::Exporter),
    ("OTEL_SDK_DISABLED", "telemetry.enabled", Read::Disabled),
];

impl Read {
    /// What a value may be.
    fn expected(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::Number => "a number above 0",
            Self::Millis => "milliseconds, as a number",
            Self::Disabled => "true or false",
            Self::Exporter => "otlp or none",
            Self::Protocol => "grpc or http/protobuf",
            Self::Sampler => {
                "always_on, always_off or traceidratio, each also as parentbased_…; OTEL_TRACES_SAMPLER_ARG is a ratio from 0 to 1"
            }
        }
    }

    /// The setting's value; none inside if nothing is to be set, none outside if the variable is wrong.
    fn value(self, text: &str, var: &impl Fn(&str) -> Option<String>) -> Option<Option<String>> {
        let some = |value: String| Some(Some(value));
        match self {
            Self::Text => some(text.to_owned()),
            Self::Number => text.parse::<u32>().ok().filter(|number| *number > 0).map(|number| Some(number.to_string())),
            Self::Millis => text.parse::<u32>().ok().map(|millis| Some(format!("{millis}ms"))),
            // The specification takes everything else for false.
            Self::Disabled if text.eq_ignore_ascii_case("true") => some("false".to_owned()),
            Self::Disabled => Some(None),
            Self::Exporter if text == "otlp" => Some(None),
            Self::Exporter => (text == "none").then(|| Some("false".to_owned())),
            Self::Protocol => ["grpc", "http/protobuf"].contains(&text).then(|| Some(text.to_owned())),
            Self::Sampler => match text.strip_prefix("parentbased_").unwrap_or(text) {
                "always_on" => some("1.0".to_owned()),
                "always_off" => some("0.0".to_owned()),
                "traceidratio" => {
                    let ratio = var("OTEL_TRACES_SAMPLER_ARG").map_or(Ok(1.0), |ratio| ratio.parse::<f64>());
                    ratio.ok().filter(|ratio| (0.0..=1.0).contains(ratio)).map(|ratio| Some(format!("{ratio:?}")))
                }
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings of these variables.
    fn of(vars: &[(&str, &str)]) -> Result<Vec<Setting>, Wrong> {
        let var = |name: &str| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Ok(settings(var)?.into_iter().map(|(_, setting)| setting).collect())
    }

    #[test]
    fn each_variable_sets_its_field() {
        let set = |name: &str, value: &str| of(&[(name, value)]).unwrap();
        assert_eq!(set("OTEL_SERVICE_NAME", "wal"), [("telemetry.service_name", "wal".to_owned())]);
        assert_eq!(set("OTEL_BSP_SCHEDULE_DELAY", "250"), [("telemetry.export_interval", "250ms".to_owned())]);
        assert_eq!(set("OTEL_BSP_MAX_QUEUE_SIZE", "10"), [("telemetry.queue_spans", "10".to_owned())]);
        assert_eq!(set("OTEL_TRACES_SAMPLER", "parentbased_always_off"), [("telemetry.sampling.ratio", "0.0".to_owned())]);
        assert_eq!(set("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"), [("telemetry.protocol", "http/protobuf".to_owned())]);
        assert_eq!(set("OTEL_TRACES_EXPORTER", "none"), [("telemetry.enabled", "false".to_owned())]);
        assert_eq!(set("OTEL_SDK_DISABLED", "TRUE"), [("telemetry.enabled", "false".to_owned())]);
        for nothing in [("OTEL_SDK_DISABLED", "1"), ("OTEL_TRACES_EXPORTER", "otlp"), ("OTEL_SERVICE_NAME", "")] {
            assert_eq!(of(&[nothing]), Ok(vec![]), "{nothing:?}");
        }
        let ratio = of(&[("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0.25")]).unwrap();
        assert_eq!(ratio, [("telemetry.sampling.ratio", "0.25".to_owned())]);
    }

    #[test]
    fn what_a_variable_cannot_be_is_told_with_what_it_can() {
        for (name, value) in [
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
            ("OTEL_BSP_SCHEDULE_DELAY", "1s"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
        ] {
            let wrong = of(&[(name, value)]).unwrap_err();
            assert_eq!(wrong.name, name);
            assert!(!wrong.expected.is_empty());
        }
        let wrong = of(&[("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2")]).unwrap_err();
        assert!(wrong.expected.contains("OTEL_TRACES_SAMPLER_ARG"), "{wrong:?}");
    }
}
