//! Writes one flat JSON object.

use std::fmt::Write;

/// Object under construction. Keys are ours: plain ASCII without quotes.
#[derive(Debug)]
pub(super) struct JsonObject {
    text: String,
}

impl JsonObject {
    pub(super) fn new() -> Self {
        Self {
            text: "{".to_owned(),
        }
    }

    fn key(&mut self, key: &'static str) -> &mut String {
        if self.text.len() > 1 {
            self.text.push_str(", ");
        }
        self.text.push('"');
        self.text.push_str(key);
        self.text.push_str("\": ");
        &mut self.text
    }

    pub(super) fn uint(&mut self, key: &'static str, value: impl Into<u64>) -> &mut Self {
        let value = value.into();
        write!(self.key(key), "{value}").expect("writing to a string cannot fail");
        self
    }

    /// Shortest digits that read back as the same number; `null` for NaN and infinities, which JSON does not have.
    pub(super) fn float(&mut self, key: &'static str, value: f64) -> &mut Self {
        let text = self.key(key);
        if value.is_finite() {
            write!(text, "{value:?}").expect("writing to a string cannot fail");
        } else {
            text.push_str("null");
        }
        self
    }

    pub(super) fn finish(&mut self) -> String {
        self.text.push('}');
        std::mem::take(&mut self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_json() {
        assert_eq!(JsonObject::new().finish(), "{}");
        let text = JsonObject::new()
            .uint("n", 3_u32)
            .float("x", 0.1)
            .float("big", 1e300)
            .float("whole", 2.0)
            .float("nan", f64::NAN)
            .uint("max", u64::MAX)
            .finish();
        let expected = r#"{"n": 3, "x": 0.1, "big": 1e300, "whole": 2.0, "nan": null, "max": 18446744073709551615}"#;
        assert_eq!(text, expected);
    }
}
