//! What describes who makes the spans: OpenTelemetry's resource, with Kubernetes' part of it where a node runs in a pod.

use std::path::Path;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;

use super::Role;

/// Where Kubernetes puts the name of a pod's namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Where Linux tells the host's name.
const HOST_FILE: &str = "/proc/sys/kernel/hostname";

/// What the pod's manifest tells by the downward API, and what it is called.
const FROM_MANIFEST: [(&str, &str); 4] = [
    ("K8S_POD_NAME", "k8s.pod.name"),
    ("K8S_POD_UID", "k8s.pod.uid"),
    ("K8S_NAMESPACE_NAME", "k8s.namespace.name"),
    ("K8S_NODE_NAME", "k8s.node.name"),
];

/// Describes a role: its own facts, over those of OTEL_RESOURCE_ATTRIBUTES, over what the surroundings tell.
pub(super) fn resource(role: &Role) -> Resource {
    let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let host = std::fs::read_to_string(HOST_FILE).unwrap_or_default();
    let surroundings = surroundings(var, host.trim(), Path::new(NAMESPACE_FILE));
    // Detectors run after these, so that what OTEL_RESOURCE_ATTRIBUTES says counts more.
    let around = Resource::builder_empty().with_attributes(surroundings).build();
    let detected = Resource::builder().build();
    let detected = detected.iter().filter(|(key, _)| key.as_str() != "service.name");
    let attributes = around.iter().chain(detected).map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    Resource::builder_empty()
        .with_attributes(attributes)
        .with_service_name(role.service_name.clone())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("service.instance.id", role.instance_id.clone()))
        .build()
}

/// Host and process, and in a pod the names of pod, namespace and node.
fn surroundings(var: impl Fn(&str) -> Option<String>, host: &str, namespace_file: &Path) -> Vec<KeyValue> {
    let mut found =
        vec![KeyValue::new("host.name", host.to_owned()), KeyValue::new("process.pid", i64::from(std::process::id()))];
    if var("KUBERNETES_SERVICE_HOST").is_some() {
        // A pod's host name is its name, unless its manifest says otherwise.
        found.push(KeyValue::new("k8s.pod.name", host.to_owned()));
        if let Ok(namespace) = std::fs::read_to_string(namespace_file) {
            found.push(KeyValue::new("k8s.namespace.name", namespace.trim().to_owned()));
        }
    }
    found.extend(FROM_MANIFEST.iter().filter_map(|(name, key)| Some(KeyValue::new(*key, var(name)?))));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last value of an attribute.
    fn last(found: &[KeyValue], key: &str) -> Option<String> {
        found.iter().rev().find(|attribute| attribute.key.as_str() == key).map(|attribute| attribute.value.to_string())
    }

    #[test]
    fn a_pod_is_told_by_its_surroundings_and_its_manifest() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("namespace");
        std::fs::write(&file, "replication\n").unwrap();
        let none = surroundings(|_| None, "decoder-0", &file);
        assert_eq!((last(&none, "host.name").as_deref(), last(&none, "k8s.pod.name")), (Some("decoder-0"), None));
        let in_pod = |name: &str| (name == "KUBERNETES_SERVICE_HOST").then(|| "10.0.0.1".to_owned());
        let pod = surroundings(in_pod, "decoder-0", &file);
        assert_eq!(last(&pod, "k8s.pod.name").as_deref(), Some("decoder-0"));
        assert_eq!(last(&pod, "k8s.namespace.name").as_deref(), Some("replication"));
        let told = surroundings(|name| Some(name.to_lowercase()), "decoder-0", &file);
        let wanted = [("k8s.pod.name", "k8s_pod_name"), ("k8s.pod.uid", "k8s_pod_uid"), ("k8s.node.name", "k8s_node_name")];
        for (key, value) in wanted {
            assert_eq!(last(&told, key).as_deref(), Some(value));
        }
    }

    #[test]
    fn a_role_says_its_name_version_and_instance() {
        let role = Role { service_name: "walstorm-decoder".to_owned(), instance_id: "127.0.0.1:7002".to_owned() };
        let resource = resource(&role);
        for (key, value) in [("service.name", "walstorm-decoder"), ("service.instance.id", "127.0.0.1:7002")] {
            assert_eq!(resource.get(&key.into()).map(|found| found.to_string()).as_deref(), Some(value));
        }
        assert!(resource.get(&"host.name".into()).is_some() && resource.get(&"telemetry.sdk.name".into()).is_some());
    }
}
