// A plug-in of qemu that counts executed instructions, and among them those that multiply and add: sdot and smmla bytes,
// fmlal and fmla half floats, fmla also floats.
// It declares the part of qemu's plug-in interface (version 1) that it uses; Debian ships no header of it.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;

enum { ADD_U64 = 0 };

extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int, void *, uint64_t);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn * qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern const void * qemu_plugin_insn_data(const struct qemu_plugin_insn *);

int qemu_plugin_version = 1;

static uint64_t instructions, products;

static int is_product(uint32_t op) {
    return (op & 0xffe0fc00) == 0x4e809400     // sdot, vectors
           || (op & 0xffc0f400) == 0x4f80e000  // sdot, one element
           || (op & 0xffe0fc00) == 0x4e80a400  // smmla
           || (op & 0xffc0f400) == 0x4f800000  // fmlal, one element
           || (op & 0xffc0f400) == 0x6f808000  // fmlal2, one element
           || (op & 0xff80f400) == 0x4f001000  // fmla of half floats, one element
           || (op & 0xffc0f400) == 0x4f801000; // fmla of floats, one element
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb * tb) {
    (void) id;
    size_t n = qemu_plugin_tb_n_insns(tb), n_products = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t op;
        memcpy(&op, qemu_plugin_insn_data(qemu_plugin_tb_get_insn(tb, i)), sizeof op);
        n_products += is_product(op);
    }
    qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_U64, &instructions, n);
    if (n_products) {
        qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_U64, &products, n_products);
    }
}

static void done(qemu_plugin_id_t id, void * data) {
    (void) id;
    (void) data;
    printf("%llu %llu\n", (unsigned long long) instructions, (unsigned long long) products);
    fflush(stdout);
}

int qemu_plugin_install(qemu_plugin_id_t id, const void * info, int argc, char ** argv) {
    (void) info;
    (void) argc;
    (void) argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, done, NULL);
    return 0;
}
