//! Tests of the configuration's layers.

use std::time::Duration;

use serde::Deserialize;

use super::*;
use crate::logs::{LogConfig, LogFormat};
use crate::server::ServerConfig;

/// As a node's configuration looks.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    server: ServerConfig,
    log: LogConfig,
    slot: String,
    output: Option<PathBuf>,
    ratio: f64,
    token: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        let (server, log) = (ServerConfig::default(), LogConfig::default());
        Self { server, log, slot: "main".to_owned(), output: None, ratio: 0.5, token: None }
    }
}

/// As a node's flags look.
#[derive(Default, Serialize)]
struct Flags {
    #[serde(rename = "server.listen")]
    listen: Option<String>,
    slot: Option<String>,
}

/// Variables of the decoder.
fn vars(vars: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    vars.iter().map(|(name, value)| (format!("WALSTORM_DECODER__{name}").into(), (*value).into())).collect()
}

/// Loads from a file's text, variables and flags.
fn load(file: &str, env: &[(&str, &str)], flags: &Flags) -> Result<Effective<Config>, String> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("decoder.toml");
    std::fs::write(&path, file).expect("the directory is ours");
    let layers = || Layers::new("decoder").file(Some(&path))?.environment(vars(env))?.flags(flags)?.load();
    layers().map_err(|e: ConfigError| e.to_string().replace(&*path.to_string_lossy(), "FILE"))
}

#[test]
fn without_layers_the_defaults_hold() {
    let loaded = Layers::new("decoder").load::<Config>().expect("defaults are valid");
    assert_eq!(loaded.value, Config::default());
    assert!(loaded.lines().all(|l| l.ends_with("(default)")));
}

#[test]
fn later_layers_win_field_by_field() {
    let file = "slot = 'file'\nratio = 1\n[server]\nlisten = '127.0.0.1:1'\ngrace = '1s'\nreflection = false\n";
    let env = [("SERVER__LISTEN", "127.0.0.1:2"), ("SERVER__GRACE", "2500ms"), ("LOG__FORMAT", "json"), ("SLOT", "env")];
    let flags = Flags { listen: Some("127.0.0.1:3".to_owned()), slot: None };
    let loaded = load(file, &env, &flags).expect("valid");
    let config = &loaded.value;
    assert_eq!(config.server.listen, "127.0.0.1:3");
    assert_eq!(config.server.grace, Duration::from_millis(2500));
    assert!(!config.server.reflection);
    assert_eq!(config.server.max_concurrent_streams, ServerConfig::default().max_concurrent_streams);
    assert_eq!((config.slot.as_str(), config.ratio, config.log.format), ("env", 1.0, LogFormat::Json));

    let lines: Vec<_> = loaded.lines().collect();
    for line in [
        "server.listen = \"127.0.0.1:3\" (flag --listen)",
        "slot = \"env\" (environment variable WALSTORM_DECODER__SLOT)",
        "server.max_concurrent_streams = 4096 (default)",
        "output = unset (default)",
    ] {
        assert!(lines.iter().any(|l| l == line), "{line} is not in {lines:#?}");
    }
    assert!(lines.iter().any(|l| l.starts_with("server.reflection = false (configuration file ")));
}

#[test]
fn secrets_are_not_shown() {
    let loaded = load("token = 'hunter2'", &[], &Flags::default()).expect("valid");
    assert_eq!(loaded.value.token.as_deref(), Some("hunter2"));
    assert!(loaded.lines().any(|l| l.starts_with("token = ***")) && !loaded.lines().any(|l| l.contains("hunter2")));
}

#[test]
fn a_variable_that_looks_like_a_number_can_be_text() {
    let env = [("SLOT", "007"), ("OUTPUT", "12"), ("TOKEN", "true"), ("RATIO", "0.25")];
    let config = load("", &env, &Flags::default()).expect("valid").value;
    assert_eq!((config.slot.as_str(), config.ratio), ("007", 0.25));
    assert_eq!((config.output, config.token.as_deref()), (Some(PathBuf::from("12")), Some("true")));
}

#[test]
fn variables_of_other_roles_are_not_read() {
    let env = [(OsString::from("WALSTORM_PRIMARY__SLOT"), OsString::from("x")), ("PATH".into(), "/bin".into())];
    let loaded = Layers::new("decoder").environment(env).and_then(Layers::load::<Config>).expect("valid");
    assert_eq!(loaded.value, Config::default());
}

#[test]
fn errors_name_layer_field_and_remedy() {
    let none = Flags::default();
    let error = |file: &str, env: &[(&str, &str)]| load(file, env, &none).expect_err("wrong");

    let text = error("[server]\nlisen = 'x'\n", &[]);
    assert!(text.starts_with("configuration file FILE: unknown field 'server.lisen'; valid names here: listen, "), "{text}");
    let text = error("slots = 'x'", &[]);
    assert!(text.starts_with("configuration file FILE: unknown field 'slots'; valid names here: server, log, slot"), "{text}");
    let text = error("[serve]\nlisten = 'x'", &[]);
    assert!(text.starts_with("configuration file FILE: unknown field 'serve'; valid names"), "{text}");
    let text = error("", &[("SERVER__PORT", "1")]);
    let start = "environment variable WALSTORM_DECODER__SERVER__PORT: unknown field 'server.port'; valid names here: listen";
    assert!(text.starts_with(start), "{text}");
    let text = error("", &[("RATIO", "half")]);
    assert!(text.starts_with("environment variable WALSTORM_DECODER__RATIO: field 'ratio' must be "), "{text}");
    let text = error("ratio = 'x\\u001b[2J'", &[]);
    assert!(text.starts_with("configuration file FILE: field 'ratio'") && !text.contains('\u{1b}'), "{text}");
    let text = error("[server]\ngrace = 'soon'", &[]);
    assert!(text.starts_with("configuration file FILE: field 'server.grace'"), "{text}");
    let text = error("[log]\nformat = 'xml'", &[]);
    assert!(text.contains("field 'log.format'") && text.contains("auto, human, json"), "{text}");
    let text = error("server = 1", &[]);
    assert!(text.contains("'server' is a table"), "{text}");
    let text = error("a = [", &[]);
    assert!(text.starts_with("configuration file FILE is no valid TOML: ") && text.contains("line 1"), "{text}");
    let text = error("", &[("SERVER____LISTEN", "x")]);
    assert!(text.contains("empty part"), "{text}");
    let variable = |name: &str| Layers::new("decoder").environment([(name.into(), "x".into())]).map(drop);
    let text = variable("WALSTORM_DECODER_SERVER__LISTEN").unwrap_err().to_string();
    assert!(text.ends_with("two underscores belong behind the role: WALSTORM_DECODER__SERVER__LISTEN"), "{text}");
    for of_kubernetes in ["WALSTORM_DECODER_SERVICE_HOST", "WALSTORM_DECODER_PORT_50051_TCP", "WALSTORM_STANDBY_SERVER__LISTEN"]
    {
        variable(of_kubernetes).unwrap();
    }
}

#[test]
fn a_missing_file_is_named() {
    let path = Path::new("/nonexistent/decoder.toml");
    let error = Layers::new("decoder").file(Some(path)).expect_err("missing").to_string();
    assert!(error.starts_with("cannot read configuration file /nonexistent/decoder.toml: "), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_is_no_configuration() {
    let error = Layers::new("primary").file(Some(Path::new("/dev/zero"))).unwrap_err().to_string();
    assert!(error.contains("/dev/zero") && error.contains("no regular file"), "{error}");
}
