// Every cap of the host in one place. Units last in the name.
#pragma once

#include <cstdint>

namespace varve {

// A plugin's library file; its symbol table is read before anything of it runs.
inline constexpr uint64_t kPluginFileBytesMax = uint64_t{1} << 30;
inline constexpr uint64_t kPluginSymbolsMax = 1 << 20;
inline constexpr uint64_t kPluginDynamicMax = 1 << 12;  // dynamic entries; needed versions

// Texts and parameters in a plugin's entry.
inline constexpr uint64_t kPluginTextBytesMax = 256;
inline constexpr uint64_t kPluginParamsMax = 256;
inline constexpr uint32_t kPluginsPerStackMax = 32;

// What one plugin may ask of the host.
inline constexpr uint32_t kMetricsPerPluginMax = 64;
inline constexpr uint32_t kLogLinesPerSecondMax = 100;
inline constexpr uint64_t kLogLineBytesMax = 4096;
inline constexpr uint64_t kBufferAlignMax = 4096;

// How long drain() of a plugin may take.
inline constexpr uint64_t kDrainNsMax = 10'000'000'000;

// A plugin in a process of its own (isolation = "worker"). One slot serves one call at a time; a
// payload takes memory only where a call has touched it. Enough for the policy's view of a text of
// two million tokens.
inline constexpr uint32_t kWorkerSlots = 8;
inline constexpr uint64_t kWorkerPayloadBytes = uint64_t{8} << 20;
inline constexpr uint64_t kWorkerStructBytesMax = 64 << 10;
// Calls that follow each other within this time are in a row: before they sleep, both sides look
// for the other's word as long as that. Longer than it takes to wake an idle core, shorter than the
// pauses between decode steps.
inline constexpr uint64_t kWorkerSpinUs = 50;
// Loading, opening, activating and closing the plugin, each.
inline constexpr uint64_t kWorkerStartMs = 30'000;
inline constexpr uint64_t kWorkerCloseMs = 2'000;
// So many failures within the window put the plugin into quarantine; until then it starts again
// after a pause that doubles with each failure in the window.
inline constexpr uint32_t kWorkerFailuresMax = 5;
inline constexpr uint64_t kWorkerWindowMs = 60'000;
inline constexpr uint64_t kWorkerBackoffMs = 10;
inline constexpr uint64_t kWorkerBackoffMsMax = 5'000;

inline constexpr uint32_t kThreadsMax = 1024;
// A worker without work looks for some this long before it sleeps: longer than the gaps between the
// parallel sections of one decode step, shorter than those between requests.
inline constexpr uint64_t kThreadSpinUs = 80;

}  // namespace varve
