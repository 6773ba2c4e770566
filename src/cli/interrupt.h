// The first Ctrl-C asks the verb to stop. The second ends the process with that signal.
#pragma once

#include <atomic>

namespace fathom {

inline constexpr int kInterruptedExit = 130;

void watch_interrupts();
void watch_termination();  // SIGTERM, too: for verbs that have something to save
const std::atomic<bool>& interrupted();
int interrupting_signal();  // the last one; 0: none came
void forget_interrupt();    // a conversation goes on after an answer was cut short

}  // namespace fathom
