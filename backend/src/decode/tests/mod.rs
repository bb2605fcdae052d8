//! Tests of the decoder as a whole; those of single functions are beside them.

mod audit;
mod cached;
mod full;
pub(super) mod machine;
mod params;
mod reference;
mod state;
