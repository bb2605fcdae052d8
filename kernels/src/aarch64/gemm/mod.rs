//! Products with tiled weights.
//!
//! A tile is [decoded](decode) once per group of rows, into signed bytes in the order in which the instructions of a
//! family take them, and stays in the first-level cache while rows of x pass by, a few at a time:
//!
//! | family | weights of one vector | x of one vector | rows at a time |
//! |---|---|---|---|
//! | [`Dot`] | 4 elements of 4 rows | 4 elements of 4 rows | 4 |
//! | [`Matrix`] | 8 elements of 2 rows | 8 elements of 2 rows | 8 |
//! | [`Long`] | 4 elements of 4 rows | 4 elements of 1 row, repeated | 1 |
//! | [`F16`] | 1 element of 4 rows, f32 | 1 element of 4 rows, f32 | 4 |

mod decode;
mod dot;
mod float;
mod long;
mod matrix;
mod unit;

pub(crate) use dot::Dot;
pub(crate) use float::F16;
pub(crate) use long::Long;
pub(crate) use matrix::Matrix;
