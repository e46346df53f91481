/* What a host calls of a plugin, and how it looks at the answers. Built with the headers of the
 * host's version, so every size is that version's. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The interface that a plugin of this kind must offer; NULL for an unknown kind. */
const char* interface_of(const char* kind);

/* Each answer lies once in front of watched bytes and once in front of a page that nobody may
 * touch, where a write beyond the host's size ends the process. Both return what is wrong, or NULL.
 */
struct mri_plugin;
const char* call_query_caps(const struct mri_plugin* plugin);
/* Calls every function of the kind's interface of an active plugin. *n_answers counts the rows,
 * picks, pairs ... of its answers. */
const char* call_kind(const char* kind, const void* table, void* self, uint64_t* n_answers);

#ifdef __cplusplus
}
#endif
