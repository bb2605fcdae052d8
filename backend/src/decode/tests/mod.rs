//! Tests of the decoder as a whole; those of single functions are beside them.

mod cached;
pub(super) mod machine;
mod params;
mod reference;
mod state;
