//! Finds the cluster that a job file names, before the file is checked: the backends of that cluster decide what is valid.

use serde_json::Value;

use super::{tree::Node, yaml};

/// Returns the cluster that a job file names, if it can be read so far.
pub fn named_cluster(text: &str) -> Option<String> {
    if !text.contains("cluster") {
        return None;
    }
    match yaml::tree(text) {
        Ok(tree) => tree?.field("cluster").and_then(Node::as_text).map(str::to_owned),
        Err(_) => named_cluster_of_json(&serde_json::from_str(text).ok()?),
    }
}

/// Returns the cluster that a job file in JSON names.
pub fn named_cluster_of_json(value: &Value) -> Option<String> {
    value.get("cluster")?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_found_in_yaml_and_json_and_only_at_the_top() {
        let cases = [
            ("cluster: web\ntasks: []", Some("web")),
            ("{\"cluster\": \"web\"}", Some("web")),
            ("{\"cluster\": \"w\\/b\"}", Some("w/b")),
            ("tasks: [{cluster: web}]", None),
            ("cluster: [web]", None),
            ("cluster: 7", None),
            ("name: cluster", None),
            ("cluster: {", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(named_cluster(text).as_deref(), expected, "{text}");
        }
    }
}
