//! What tests of QNN share: the library that fails on demand, graphs with known answers, and tests as processes of their own.

pub mod attention;
pub mod case;
pub mod fault;
pub mod htp;
pub mod linear;
pub mod session;

pub use fault::Fault;
