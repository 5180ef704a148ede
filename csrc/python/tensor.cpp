#include "python/tensor.h"

#include <utility>

namespace sightline {

namespace dlpack {

static const ExchangeAPI* find_exchange_api(PyTypeObject* type) {
    nb::object capsule = nb::steal(PyObject_GetAttrString((PyObject*)type, "__dlpack_c_exchange_api__"));
    void* pointer = capsule.is_valid() ? PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api") : nullptr;
    PyErr_Clear();
    auto* api = static_cast<const ExchangeAPI*>(pointer);
    return api && api->version.major == 1 ? api : nullptr;
}

// There are few types (torch.Tensor, Parameter); they are kept alive so that their addresses stay valid keys.
const ExchangeAPI* exchange_api(PyTypeObject* type) {
    static std::vector<std::pair<PyTypeObject*, const ExchangeAPI*>> cached;  // guarded by the GIL
    for (const auto& [cached_type, api] : cached)
        if (cached_type == type) return api;
    const ExchangeAPI* api = find_exchange_api(type);
    if (api && cached.size() < 16) {
        Py_INCREF(type);
        cached.emplace_back(type, api);
    }
    return api;
}

}  // namespace dlpack

long Tensor::count() const {
    long product = 1;
    for (int n = 0; n < view.dimensions; n++) product *= view.shape[n];
    return product;
}

bool Tensor::is_contiguous() const {
    if (!view.strides) return true;
    long expected = 1;
    for (int n = view.dimensions - 1; n >= 0; n--) {
        if (view.shape[n] == 0) return true;
        if (view.shape[n] != 1 && view.strides[n] != expected) return false;
        expected *= view.shape[n];
    }
    return true;
}

static std::string format_sizes(const long* sizes, long count) {
    std::string text = "[";
    for (long n = 0; n < count; n++) text += (n ? ", " : "") + (sizes[n] == ANY ? "…" : std::to_string(sizes[n]));
    return text + "]";
}

std::string Tensor::describe() const {
    const nb::object dtype = object.attr("dtype"), text = nb::steal(PyObject_Str(dtype.ptr()));
    const std::string name = PyUnicode_AsUTF8(text.ptr());
    const std::vector<long> sizes(view.shape, view.shape + view.dimensions);
    return name + " " + format_sizes(sizes.data(), (long)sizes.size()) + (is_contiguous() ? "" : ", not contiguous");
}

void Tensor::check(const char* name, uint8_t type, uint8_t bits, const char* dtype, const std::vector<long>& shape, bool contiguous) const {
    bool fits = view.type == type && view.bits == bits && view.lanes == 1 && view.device_type == dlpack::cpu;
    fits = fits && view.dimensions == (int)shape.size() && (!contiguous || is_contiguous());
    for (int n = 0; fits && n < view.dimensions; n++) fits = shape[n] == ANY || view.shape[n] == shape[n];
    if (fits) return;
    const std::string expected = std::string("torch.") + dtype + " " + format_sizes(shape.data(), (long)shape.size());
    throw InputError(std::string(name) + ": " + describe(), expected + (contiguous ? ", contiguous, on the CPU" : ", on the CPU"));
}

std::shared_ptr<const void> reference_to(const Tensor& x) {
    return {x.object.inc_ref().ptr(), [](const void* object) {
                nb::gil_scoped_acquire gil;
                Py_DECREF((PyObject*)object);
            }};
}

FloatArray keep_floats(const std::optional<Tensor>& x, const char* name) {
    if (!x) return {};
    const std::vector<long> any(x->view.dimensions, ANY);
    return {x->data<float>(name, any), x->count(), reference_to(*x)};
}

}  // namespace sightline
