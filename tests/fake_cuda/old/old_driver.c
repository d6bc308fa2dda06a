/* A driver of before cuGetProcAddress. */
__attribute__((visibility("default"))) int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version)
{
    *version = 11020;
    return 0;
}
