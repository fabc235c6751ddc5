/* In place of the probe's images, in a build for no architecture: for the mock, which knows them by their address. */
extern const unsigned char koloProbeKernels[1], koloProbeKernelsText[1];
const unsigned char koloProbeKernels[1] = {0}, koloProbeKernelsText[1] = {0};
