//! Chips by QNN's number.

use std::fmt;

/// QNN's number of a chip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Soc(pub u32);

/// Number, name and version of the tensor processor ("v75" is 75).
const KNOWN: &[(u32, &str, u32)] = &[
    (30, "SM8350", 68),
    (36, "SM8450", 69),
    (42, "SM8475", 69),
    (43, "SM8550", 73),
    (57, "SM8650", 75),
    (60, "SC8380XP", 73),
    (68, "SM8635", 73),
    (69, "SM8750", 79),
    (85, "SM8735", 79),
    (87, "SM8850", 81),
];

impl Soc {
    /// Snapdragon 8 Gen 2.
    pub const SM8550: Self = Self(43);
    /// Snapdragon 8 Gen 3.
    pub const SM8650: Self = Self(57);
    /// Snapdragon 8 Elite.
    pub const SM8750: Self = Self(69);
    /// Snapdragon 8 Elite Gen 5.
    pub const SM8850: Self = Self(87);

    /// The chip of a name such as `SM8650`.
    pub fn by_name(name: &str) -> Option<Self> {
        let known = KNOWN
            .iter()
            .find(|known| known.1.eq_ignore_ascii_case(name))?;
        Some(Self(known.0))
    }

    /// The name, where it is known.
    pub fn name(self) -> Option<&'static str> {
        let known = KNOWN.iter().find(|known| known.0 == self.0)?;
        Some(known.1)
    }

    /// The version of its tensor processor, where it is known: 75 is "v75".
    pub fn arch(self) -> Option<u32> {
        let known = KNOWN.iter().find(|known| known.0 == self.0)?;
        Some(known.2)
    }
}

impl fmt::Display for Soc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "SoC {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_belong_together() {
        assert_eq!(Soc::by_name("sm8650"), Some(Soc::SM8650));
        assert_eq!(Soc::SM8650.arch(), Some(75));
        assert_eq!(Soc(1).to_string(), "SoC 1");
        assert_eq!(Soc::by_name("SM1"), None);
    }
}
