//! Parameters of operations: from ggml's words to those of the kernels.

use llada_npu_ffi::ggml::op;
use llada_npu_kernels::op::binary::BinaryOp;
use llada_npu_kernels::op::glu::GluOp;
use llada_npu_kernels::op::rope::{Pairing, RopeParams};
use llada_npu_kernels::op::unary::UnaryOp;

/// ggml's `mode` of pairs side by side, and of pairs of halves; the numbers are part of model files.
const ROPE_NORMAL: i32 = 0;
const ROPE_NEOX: i32 = 2;

/// Returns the float that a parameter holds.
pub(super) fn float(param: i32) -> f32 {
    f32::from_bits(param.cast_unsigned())
}

pub(super) fn binary_op(op: op::BinaryOp) -> BinaryOp {
    match op {
        op::BinaryOp::Add => BinaryOp::Add,
        op::BinaryOp::Sub => BinaryOp::Sub,
        op::BinaryOp::Mul => BinaryOp::Mul,
        op::BinaryOp::Div => BinaryOp::Div,
    }
}

/// `None` for functions without a kernel.
pub(super) fn unary_op(op: op::UnaryOp) -> Option<UnaryOp> {
    Some(match op {
        op::UnaryOp::Abs => UnaryOp::Abs,
        op::UnaryOp::Sgn => UnaryOp::Sgn,
        op::UnaryOp::Neg => UnaryOp::Neg,
        op::UnaryOp::Step => UnaryOp::Step,
        op::UnaryOp::Tanh => UnaryOp::Tanh,
        op::UnaryOp::Elu => UnaryOp::Elu,
        op::UnaryOp::Relu => UnaryOp::Relu,
        op::UnaryOp::Sigmoid => UnaryOp::Sigmoid,
        op::UnaryOp::Gelu => UnaryOp::Gelu,
        op::UnaryOp::GeluErf => return None,
        op::UnaryOp::GeluQuick => UnaryOp::GeluQuick,
        op::UnaryOp::Silu => UnaryOp::Silu,
        op::UnaryOp::Hardswish => UnaryOp::Hardswish,
        op::UnaryOp::Hardsigmoid => UnaryOp::Hardsigmoid,
        op::UnaryOp::Exp => UnaryOp::Exp,
    })
}

/// `None` for gates without a kernel; `alpha` and `limit` are parameters of one of them.
pub(super) fn glu_op(op: op::GluOp, alpha: f32, limit: f32) -> Option<GluOp> {
    Some(match op {
        op::GluOp::Reglu => GluOp::Reglu,
        op::GluOp::Geglu => GluOp::Geglu,
        op::GluOp::Swiglu => GluOp::Swiglu,
        op::GluOp::SwigluOai => GluOp::SwigluOai { alpha, limit },
        op::GluOp::GegluErf => return None,
        op::GluOp::GegluQuick => GluOp::GegluQuick,
    })
}

/// `None` for modes without a kernel: several positions per token, or pairs that start later in the row.
pub(super) fn rope_params(params: &[i32; 16]) -> Option<RopeParams> {
    let pairing = match params[2] {
        ROPE_NORMAL => Pairing::Normal,
        ROPE_NEOX => Pairing::Neox,
        _ => return None,
    };
    let [
        freq_base,
        freq_scale,
        ext_factor,
        attn_factor,
        beta_fast,
        beta_slow,
    ] = std::array::from_fn(|i| float(params[5 + i]));
    (params[11..] == [0; 5]).then_some(RopeParams {
        pairing,
        n_dims: usize::try_from(params[1]).ok()?,
        n_ctx_orig: params[4],
        freq_base,
        freq_scale,
        ext_factor,
        attn_factor,
        beta_fast,
        beta_slow,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_that_kernels_do_not_know_are_none() {
        let mut params = [0; 16];
        params[1] = 64;
        params[5] = 1e4f32.to_bits().cast_signed();
        let read = rope_params(&params).unwrap();
        assert_eq!(
            (read.pairing, read.n_dims, read.freq_base),
            (Pairing::Normal, 64, 1e4)
        );
        params[2] = 2;
        assert_eq!(rope_params(&params).unwrap().pairing, Pairing::Neox);
        for (i, value) in [(2, 8), (2, 24), (15, 2), (11, 1), (1, -2)] {
            let mut params = params;
            params[i] = value;
            assert_eq!(rope_params(&params), None, "{i} {value}");
        }
    }
}
