// Small copies to the device, remembered. Of all but `mock_remember`, nothing happens until that has been called with 1.
int remembering(void);
void remember(const void *to, const void *values, size_t bytes); // the host has copied them to the device
void forget(const void *to, size_t bytes);                       // something else has been written there
int recall(void *to, const void *from, size_t bytes);            // puts there what is remembered; whether anything is
