/* A library that a plugin drags in. */
__attribute__((visibility("default"))) int helper(void);
int helper(void) { return 1; }
