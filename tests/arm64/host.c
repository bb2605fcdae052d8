// A host without ggml: loads the plug-in and asks both of its entry points. The plug-in must refuse and stay harmless.
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char ** argv) {
    void * plugin = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!plugin) {
        fprintf(stderr, "not loaded: %s\n", argc == 2 ? dlerror() : "usage: host PLUGIN");
        return 1;
    }
    int (*score)(void) = (int (*)(void)) dlsym(plugin, "ggml_backend_score");
    void * (*init)(void) = (void * (*)(void)) dlsym(plugin, "ggml_backend_init");
    if (!score || !init) {
        fprintf(stderr, "an entry point is missing\n");
        return 1;
    }
    int points = score();
    void * reg = init();
    printf("score %d, registry %s\n", points, reg ? "given" : "refused");
    return points == 0 && !reg && !init() ? 0 : 1;
}
