// The header in C++17: included twice, linked with C linkage, statuses typed.
#include "weight_checker.h"
#include "weight_checker.h"

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "check.h"

static_assert(sizeof(WcStatus) == 4, "the status is an int32_t on both sides");
static_assert(std::is_trivially_copyable<WcTensor>::value, "a tensor is plain data");

int main() {
    std::vector<float> weights(1000, 1.0f);
    const std::vector<int64_t> shape{10, 50}, strides{100, 2};
    WcTensor tensor{};
    tensor.struct_size = sizeof(WcTensor);
    tensor.name = "layer.weight";
    tensor.data = weights.data();
    tensor.device = WcDevice{1, 0};
    tensor.ndim = 2;
    tensor.dtype = WcDataType{2, 32, 1};
    tensor.shape = shape.data();
    tensor.strides = strides.data();

    const WcRank rank{};
    char *json = nullptr;
    CHECK(wc_reset(&tensor, 1, WC_FILL_ZERO, 0, nullptr, &json) == WC_STATUS_OK);
    const std::unique_ptr<char, decltype(&wc_string_free)> report(json, wc_string_free);
    CHECK(std::string(report.get()).find("\"bytes\":2000") != std::string::npos);
    for (size_t index = 0; index < weights.size(); ++index) {
        CHECK(weights[index] == (index % 2 == 0 ? 0.0f : 1.0f));
    }

    char *expected = nullptr;
    CHECK(wc_expect(nullptr, nullptr, &tensor, 1, nullptr, &expected) == WC_STATUS_NULL_POINTER);
    CHECK(std::string(wc_last_error()).find("plan_json") != std::string::npos);

    tensor.name = nullptr;
    const WcStatus status = wc_checksum(&tensor, 1, &rank, nullptr, &json);
    CHECK(status == WC_STATUS_NULL_POINTER);
    CHECK(std::string(wc_last_error()).find("tensors[0].name") != std::string::npos);
    return 0;
}
