//! Owns the settings of single backends, `[agent.backend.NAME]`. Each backend reads its own, in its own file.

use serde_json::Value;

use super::docker::{self, Engine};
use crate::declared::{Key, Refused};

#[derive(Clone, Debug, Default)]
pub struct BackendSettings {
    pub(super) docker: Option<Engine>,
}

impl BackendSettings {
    /// Reads settings by the names of their backends. Refuses unknown backends and keys.
    pub fn read(section: &Value) -> Result<Self, Refused> {
        let key = Key::new("backend");
        let section = key.map(section)?;
        key.known(section, &["docker"])?;
        let of = |name: &str| section.get(name).map(|value| (key.field(name), value));
        Ok(Self {
            docker: of("docker").map(|(key, value)| docker::settings(&key, value)).transpose()?.flatten(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_backend_reads_its_own_settings_and_refuses_others() {
        let read = |value: Value| BackendSettings::read(&value);
        let engine = read(json!({"docker": {"socket": "unix:///run/x.sock"}})).unwrap().docker.unwrap();
        assert_eq!(engine.to_string(), "/run/x.sock");
        assert!(read(json!({"docker": {"socket": ""}})).unwrap().docker.is_none());
        for (value, key, reason) in [
            (json!({"dokcer": {}}), "backend.dokcer", "did you mean `docker`?"),
            (json!({"docker": {"sockt": "x"}}), "backend.docker.sockt", "did you mean `socket`?"),
            (json!({"docker": {"socket": 1}}), "backend.docker.socket", "must be a string"),
            (json!({"docker": {"socket": "ssh://x"}}), "backend.docker.socket", "write unix:///PATH"),
            (json!({"docker": 1}), "backend.docker", "must be a section"),
        ] {
            let refused = read(value).unwrap_err();
            assert_eq!(refused.key, key);
            assert!(refused.reason.contains(reason), "{}", refused.reason);
        }
    }
}
