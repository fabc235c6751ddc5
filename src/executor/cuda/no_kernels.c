/* In place of the image, in a build for no architecture: for tests by the mock, and for sanitizers. */
extern const unsigned char koloKernels[1], koloKernelsText[1];
const unsigned char koloKernels[1] = {0}, koloKernelsText[1] = {0};
