/* Only linked with, never loaded: has a system library's name and a version of years to come. */
__attribute__((visibility("default"))) int function_of_the_future(void);
int function_of_the_future(void) { return 0; }
