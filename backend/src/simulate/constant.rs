//! Numbers with their provenance.

/// How well a number is founded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Confidence {
    /// Read in source code or documentation of the system itself.
    Documented,
    /// Measured on such a device by those who are cited.
    Measured,
    /// Arithmetic on measurements; the source says which.
    Derived,
    /// Nobody has published it; the source says what is taken instead.
    Assumed,
}

impl Confidence {
    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Documented => "documented",
            Self::Measured => "measured",
            Self::Derived => "derived",
            Self::Assumed => "assumed",
        }
    }
}

/// A number and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constant {
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Who says it.
    pub source: &'static str,
    /// How well it is founded.
    pub confidence: Confidence,
}

impl Constant {
    pub(super) const fn new(
        value: f64,
        unit: &'static str,
        confidence: Confidence,
        source: &'static str,
    ) -> Self {
        Self {
            value,
            unit,
            source,
            confidence,
        }
    }

    /// Returns the constant with another value.
    #[must_use]
    pub const fn with_value(self, value: f64) -> Self {
        Self { value, ..self }
    }
}
