//! ggml's operations as values.

use super::api::Api;
use super::context::{Context, Tensor};
use super::types::Type;

/// An operation that the backend treats in a way of its own; everything else is delegated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// No operation: an input or a weight.
    None,
    /// Same data under another shape or place: `VIEW`, `RESHAPE`, `PERMUTE`, `TRANSPOSE`.
    View,
    /// `MUL_MAT`.
    MulMat,
    /// `MUL_MAT_ID`.
    MulMatId,
    /// `FLASH_ATTN_EXT`.
    FlashAttnExt,
    /// `NORM`.
    Norm,
    /// `RMS_NORM`.
    RmsNorm,
    /// `ROPE`.
    Rope,
    /// `SOFT_MAX`.
    SoftMax,
    /// `GLU`; which one is the first parameter ([`OpCodes::glu`]).
    Glu,
    /// `UNARY`; which one is the first parameter ([`OpCodes::unary`]).
    Unary,
    /// `ADD`, `SUB`, `MUL` or `DIV`.
    Binary(BinaryOp),
    /// `SCALE`.
    Scale,
    /// `GET_ROWS`.
    GetRows,
    /// `SET_ROWS`.
    SetRows,
    /// `CPY`, `CONT` or `DUP`.
    Cpy,
    /// Anything else.
    Other,
}

/// An operation on two tensors by element, the second broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
    /// `a / b`.
    Div,
}

/// An operation by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "ggml's names")]
pub enum UnaryOp {
    Abs,
    Sgn,
    Neg,
    Step,
    Tanh,
    Elu,
    Relu,
    Sigmoid,
    Gelu,
    GeluErf,
    GeluQuick,
    Silu,
    Hardswish,
    Hardsigmoid,
    Exp,
}

/// A gated linear unit: `activation(a) * b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "ggml's names")]
pub enum GluOp {
    Reglu,
    Geglu,
    Swiglu,
    SwigluOai,
    GegluErf,
    GegluQuick,
}

const N_OPS: usize = 24;
const N_UNARY: usize = 15;
const N_GLU: usize = 6;

/// The host's operation codes and flags. Codes move between ggml releases, so they are read from tensors that the
/// host's own builders made.
#[derive(Clone, Copy, Debug)]
pub struct OpCodes {
    ops: [(u32, Op); N_OPS],
    unary: [(i32, UnaryOp); N_UNARY],
    glu: [(i32, GluOp); N_GLU],
    /// Set on nodes that are to be computed; 0 where the host has no such flag.
    compute_flag: i32,
    /// Set on tensors that the host reads after a graph.
    output_flag: i32,
}

impl OpCodes {
    /// Asks the host's builders for their codes.
    #[must_use]
    pub fn probe(api: &'static Api) -> Self {
        let ctx = Context::new(api, 64, 16);
        let a = ctx.new_tensor(Type::F32, &[32, 4]);
        let product = ctx.mul_mat(&a, &a);
        let before = product.flags();
        ctx.new_graph(16).build_forward_expand(&product);
        let output = ctx.new_tensor(Type::F32, &[32, 4]);
        let plain = output.flags();
        ctx.set_output(&output);
        Self {
            ops: ops(api, &ctx, &a, &product),
            unary: unary(api, &ctx, &a),
            glu: glu(api, &ctx, &a),
            compute_flag: product.flags() & !before,
            output_flag: output.flags() & !plain,
        }
    }

    /// Classifies a code.
    #[must_use]
    pub fn classify(&self, code: u32) -> Op {
        find(&self.ops, code).unwrap_or(Op::Other)
    }

    /// Returns which [`Op::Unary`] a first parameter says, if it is a known one.
    #[must_use]
    pub fn unary(&self, param: i32) -> Option<UnaryOp> {
        find(&self.unary, param)
    }

    /// Returns which [`Op::Glu`] a first parameter says, if it is a known one.
    #[must_use]
    pub fn glu(&self, param: i32) -> Option<GluOp> {
        find(&self.glu, param)
    }

    /// Tells whether a node with these flags is to be computed; a graph may carry others.
    #[must_use]
    pub fn is_computed(&self, flags: i32) -> bool {
        self.compute_flag == 0 || flags & self.compute_flag != 0
    }

    /// Tells whether the host reads a tensor with these flags after a graph.
    #[must_use]
    pub fn is_output(&self, flags: i32) -> bool {
        flags & self.output_flag != 0
    }
}

fn find<C: PartialEq, T: Copy>(table: &[(C, T)], code: C) -> Option<T> {
    table.iter().find(|(c, _)| *c == code).map(|(_, op)| *op)
}

fn ops(api: &Api, ctx: &Context, a: &Tensor, product: &Tensor) -> [(u32, Op); N_OPS] {
    let rows = ctx.new_tensor(Type::F32, &[32, 1, 4]);
    let ids = ctx.new_tensor(Type::I32, &[1, 4]);
    let index = ctx.new_tensor(Type::I32, &[4]);
    let index_64 = ctx.new_tensor(Type::I64, &[4]);
    let mask = ctx.new_tensor(Type::F16, &[4, 64]);
    let binary = |op, builder| (ctx.build_2(builder, a, a).op_code(), Op::Binary(op));
    [
        (a.op_code(), Op::None),
        (ctx.reshape_2d(a, 4, 32).op_code(), Op::View),
        (ctx.view_2d(a, 2, 2, 128, 0).op_code(), Op::View),
        (ctx.permute(a, [1, 0, 2, 3]).op_code(), Op::View),
        (ctx.transpose(a).op_code(), Op::View),
        (product.op_code(), Op::MulMat),
        (ctx.mul_mat_id(a, &rows, &ids).op_code(), Op::MulMatId),
        (
            ctx.flash_attn_ext(a, a, a, &mask, 1.0).op_code(),
            Op::FlashAttnExt,
        ),
        (ctx.norm(a, 0.0).op_code(), Op::Norm),
        (ctx.rms_norm(a, 0.0).op_code(), Op::RmsNorm),
        (ctx.rope(&rows, &index, 32, 0, 1e4).op_code(), Op::Rope),
        (ctx.soft_max_ext(a, None, 1.0, 0.0).op_code(), Op::SoftMax),
        (ctx.swiglu_split(a, a).op_code(), Op::Glu),
        (ctx.build_1(api.ggml_silu, a).op_code(), Op::Unary),
        binary(BinaryOp::Add, api.ggml_add),
        binary(BinaryOp::Sub, api.ggml_sub),
        binary(BinaryOp::Mul, api.ggml_mul),
        binary(BinaryOp::Div, api.ggml_div),
        (ctx.scale(a, 1.0, 0.0).op_code(), Op::Scale),
        (ctx.get_rows(a, &index).op_code(), Op::GetRows),
        (ctx.set_rows(a, a, &index_64).op_code(), Op::SetRows),
        (ctx.cpy(a, a).op_code(), Op::Cpy),
        (ctx.cont(a).op_code(), Op::Cpy),
        (ctx.build_1(api.ggml_dup, a).op_code(), Op::Cpy),
    ]
}

fn unary(api: &Api, ctx: &Context, a: &Tensor) -> [(i32, UnaryOp); N_UNARY] {
    use UnaryOp::*;
    [
        (Abs, api.ggml_abs),
        (Sgn, api.ggml_sgn),
        (Neg, api.ggml_neg),
        (Step, api.ggml_step),
        (Tanh, api.ggml_tanh),
        (Elu, api.ggml_elu),
        (Relu, api.ggml_relu),
        (Sigmoid, api.ggml_sigmoid),
        (Gelu, api.ggml_gelu),
        (GeluErf, api.ggml_gelu_erf),
        (GeluQuick, api.ggml_gelu_quick),
        (Silu, api.ggml_silu),
        (Hardswish, api.ggml_hardswish),
        (Hardsigmoid, api.ggml_hardsigmoid),
        (Exp, api.ggml_exp),
    ]
    .map(|(op, builder)| (ctx.build_1(builder, a).op_param(0), op))
}

fn glu(api: &Api, ctx: &Context, a: &Tensor) -> [(i32, GluOp); N_GLU] {
    use GluOp::*;
    let oai = ctx.swiglu_oai(a, a, 1.0, 1.0);
    let [reglu, geglu, swiglu, erf, quick] = [
        (Reglu, api.ggml_reglu_split),
        (Geglu, api.ggml_geglu_split),
        (Swiglu, api.ggml_swiglu_split),
        (GegluErf, api.ggml_geglu_erf_split),
        (GegluQuick, api.ggml_geglu_quick_split),
    ]
    .map(|(op, builder)| (ctx.build_2(builder, a, a).op_param(0), op));
    [
        reglu,
        geglu,
        swiglu,
        erf,
        quick,
        (oai.op_param(0), SwigluOai),
    ]
}
