// Names of threads, as `top -H` and debuggers show them.
#pragma once

namespace fathom {

// The calling thread's; at most 15 bytes. A system that refuses it changes nothing.
void name_thread(const char* name);

}  // namespace fathom
