/* The header in C11: included twice, every function called, statuses and ownership as documented. */
#include "weight_checker.h"
#include "weight_checker.h"

#include <string.h>

#include "check.h"

/* SHA-256 of "abc": FIPS 180-2, appendix B.1. */
static const char ABC[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

static int32_t count_call(uint64_t done, uint64_t total, void *calls) {
    CHECK(done <= total);
    ++*(int *)calls;
    return 0;
}

static void count_record(int32_t level, const char *target, const char *message, void *records) {
    CHECK(level >= 1 && level <= 5 && target[0] != '\0' && message[0] != '\0');
    ++*(int *)records;
}

static WcTensor bytes(const char *name, void *data, const int64_t *length) {
    WcTensor tensor = {0};
    tensor.struct_size = sizeof tensor;
    tensor.name = name;
    tensor.data = data;
    tensor.device.device_type = 1;
    tensor.ndim = 1;
    tensor.dtype.code = 1;
    tensor.dtype.bits = 8;
    tensor.dtype.lanes = 1;
    tensor.shape = length;
    return tensor;
}

int main(void) {
    CHECK(wc_abi_version() == WC_ABI_VERSION);
    CHECK(strcmp(wc_version(), WC_VERSION) == 0);

    char memory[] = "abc";
    const int64_t length = 3;
    const WcTensor tensor = bytes("model.weight", memory, &length);
    const WcRank rank = {.tp = 1};
    int calls = 0, records = 0;
    const WcOptions options = {.struct_size = sizeof options, .progress = count_call, .progress_data = &calls};
    CHECK(wc_set_log_callback(count_record, &records) == WC_STATUS_OK);

    char *baseline = NULL;
    CHECK(wc_checksum(&tensor, 1, &rank, &options, &baseline) == WC_STATUS_OK);
    CHECK(strstr(baseline, "\"dp0:pp0:pcp0:tp1:model.weight\"") != NULL && strstr(baseline, ABC) != NULL);
    CHECK(calls == 2 && records > 0);

    uint8_t digest[WC_DIGEST_SIZE];
    CHECK(wc_digest(&tensor, 1, NULL, digest, sizeof digest) == WC_STATUS_OK);
    CHECK(digest[0] == 0xba && digest[31] == 0xad);
    CHECK(wc_digest(&tensor, 1, NULL, digest, 31) == WC_STATUS_BUFFER_TOO_SMALL);

    char *report = NULL;
    CHECK(wc_compare(&tensor, 1, &rank, baseline, NULL, &report) == WC_STATUS_OK);
    CHECK(strstr(report, "\"match\":true") != NULL);
    wc_string_free(report);

    CHECK(wc_reset(&tensor, 1, WC_FILL_POISON, 0, NULL, &report) == WC_STATUS_OK);
    CHECK(memcmp(memory, "\xff\xff\xff", 4) == 0);
    wc_string_free(report);

    CHECK(wc_compare(&tensor, 1, &rank, baseline, NULL, &report) == WC_STATUS_OK);
    CHECK(strstr(report, "\"match\":false") != NULL);
    CHECK(strcmp(wc_last_error(), "") == 0);
    wc_string_free(report);

    char plan[512];
    const char *rank_plan = "{\"rank\":{\"dp\":0,\"pp\":0,\"pcp\":0,\"tp\":0},\"parameters\":{\"p\":{\"dtype\":\"uint8\",\"shape\":[0],\"pieces\":[]}}}";
    const char *source = "{\"dtype\":\"uint8\",\"shape\":[3]}";
    snprintf(plan, sizeof plan, "{\"format\":\"weight-checker-plan\",\"version\":1,\"sources\":{\"s\":%s},\"ranks\":[%s]}",
             source, rank_plan);
    CHECK(wc_audit(plan, &report) == WC_STATUS_OK);
    CHECK(strstr(report, "\"complete\":false") != NULL && strstr(report, "\"unplaced\":[{\"source\":\"s\"") != NULL);
    wc_string_free(report);

    static const char copying[] =
        "{\"format\": \"weight-checker-plan\", \"version\": 1, \"sources\": {\"model.weight\": {\"dtype\": \"uint8\", \"shape\": [3]}},"
        " \"ranks\": [{\"rank\": {\"dp\": 0, \"pp\": 0, \"pcp\": 0, \"tp\": 1}, \"parameters\": {\"model.weight\": {\"dtype\": \"uint8\","
        " \"shape\": [3], \"pieces\": [{\"source\": \"model.weight\", \"source_offset\": 0, \"source_strides\": [1], \"shape\": [3],"
        " \"offset\": 0, \"strides\": [1]}]}}}]}";
    memcpy(memory, "abc", 3);
    CHECK(wc_expect(copying, NULL, &tensor, 1, &options, &report) == WC_STATUS_OK);
    CHECK(strcmp(report, baseline) == 0);
    wc_string_free(report);
    CHECK(wc_expect(copying, "/nonexistent", NULL, 0, NULL, &report) == WC_STATUS_BAD_CHECKPOINT);
    CHECK(wc_expect("{}", NULL, &tensor, 1, NULL, &report) == WC_STATUS_BAD_PLAN);

    char *untouched = memory;
    CHECK(wc_audit("{}", &untouched) == WC_STATUS_BAD_PLAN);
    CHECK(wc_compare(&tensor, 1, &rank, "[]", NULL, &untouched) == WC_STATUS_BAD_BASELINE);
    CHECK(untouched == memory && strlen(wc_last_error()) > 0);

    wc_string_free(baseline);
    wc_string_free(NULL);
    CHECK(wc_set_log_callback(NULL, NULL) == WC_STATUS_OK);
    return 0;
}
