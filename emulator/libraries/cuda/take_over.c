/* Finds NVIDIA's libnccl in this process and leads its private CUDA runtime, and four calls of libc, to ours. */
#define _GNU_SOURCE
#include "private.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096ul
#define JUMP_BYTES 12
#define KERNELS 512

struct image {
	const char *path;
	uintptr_t base; /* where it is mapped */
	char *file;	/* the whole file, for its symbols */
	size_t bytes;
};

struct nccl_library nccl_library;

static struct {
	const void *kernel;
	const char *name;
} kernels[KERNELS];
static size_t kernel_count;

static const struct replacement of_libc[] = {
    {"send", (void *)(uintptr_t)wire_send},	 {"recv", (void *)(uintptr_t)wire_receive},
    {"poll", (void *)(uintptr_t)wire_poll},	 {"sched_yield", (void *)(uintptr_t)wire_yield},
    {"memset", (void *)(uintptr_t)clear_memory},
};

const char *kernel_name(const void *kernel)
{
	for (size_t i = 0; i < kernel_count; i++)
		if (kernels[i].kernel == kernel)
			return kernels[i].name;
	return NULL;
}

/* Replaces a function that NCCL calls and that is not emulated. */
static int not_played(const char *name)
{
	fprintf(stderr, "emulated CUDA: %s is not played\n", name);
	return NOT_SUPPORTED;
}

static int see_image(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct image *image = argument;
	struct stat mapped, wanted;

	(void)size;
	if (!info->dlpi_name || stat(info->dlpi_name, &mapped) || stat(image->path, &wanted))
		return 0;
	if (mapped.st_ino != wanted.st_ino || mapped.st_dev != wanted.st_dev)
		return 0;
	image->base = info->dlpi_addr;
	return 1;
}

static bool map_image(struct image *image)
{
	struct stat status;
	int fd = open(image->path, O_RDONLY | O_CLOEXEC);

	if (!dl_iterate_phdr(see_image, image) || fd < 0 || fstat(fd, &status))
		return false;
	image->bytes = (size_t)status.st_size;
	image->file = mmap(NULL, image->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	return image->file != MAP_FAILED;
}

static bool write_code(void *at, const void *code, size_t bytes)
{
	uintptr_t page = (uintptr_t)at & ~(PAGE - 1);
	size_t length = (uintptr_t)at + bytes - page;

	if (mprotect((void *)page, length, PROT_READ | PROT_WRITE | PROT_EXEC))
		return false;
	memcpy(at, code, bytes);
	return !mprotect((void *)page, length, PROT_READ | PROT_EXEC);
}

/* mov rax, target; jmp rax */
static void put_jump(unsigned char *code, const void *target)
{
	memcpy(code, "\x48\xb8", 2);
	memcpy(code + 2, &target, 8);
	memcpy(code + 10, "\xff\xe0", 2);
}

/* A piece of code that calls not_played with this name: mov rdi, name; and the jump. */
static void *name_not_played(const char *name)
{
	static unsigned char *room, *end;
	unsigned char *code;

	if (room + 10 + JUMP_BYTES > end) {
		room = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (room == MAP_FAILED)
			abort();
		end = room + PAGE;
	}
	code = room;
	memcpy(code, "\x48\xbf", 2);
	memcpy(code + 2, &name, 8);
	put_jump(code + 10, (const void *)(uintptr_t)not_played);
	room += 10 + JUMP_BYTES;
	return code;
}

/* "cudaEventRecord_ptsz" is played as "cudaEventRecord": there is one kind of default stream here. */
static void *player_of(const char *name)
{
	char plain[96];
	char *suffix;
	void *found;

	snprintf(plain, sizeof(plain), "%s", name);
	suffix = strstr(plain, "_ptsz") ? strstr(plain, "_ptsz") : strstr(plain, "_ptds");
	if (suffix)
		*suffix = 0;
	found = find_runtime_function(plain);
	return found ? found : name_not_played(name);
}

/* Bytes of the push that a function begins with; 0: it begins otherwise. */
static size_t push_bytes(const unsigned char *code)
{
	if (code[0] >= 0x50 && code[0] <= 0x57)
		return 1;
	return code[0] == 0x41 && code[1] >= 0x50 && code[1] <= 0x57 ? 2 : 0;
}

/*
 * A probe of the kernel's that is put on the function by then or later steps over the first instruction of the file. So
 * that one stays, where it is a push, and is undone: add rsp, 8; then comes the jump.
 */
static bool take_function(const struct image *image, const Elf64_Sym *symbol, const char *name)
{
	const Elf64_Ehdr *header = (const void *)image->file;
	const Elf64_Shdr *section = (const Elf64_Shdr *)(image->file + header->e_shoff) + symbol->st_shndx;
	const char *original = image->file + section->sh_offset + (symbol->st_value - section->sh_addr);
	size_t prefix = push_bytes((const unsigned char *)original);
	unsigned char code[4 + JUMP_BYTES] = {0x48, 0x83, 0xc4, 0x08};
	unsigned char *jump = prefix ? code + 4 : code;

	if (symbol->st_size < prefix + sizeof(code))
		return true;
	put_jump(jump, player_of(name));
	return write_code((char *)image->base + symbol->st_value + prefix, code, (size_t)(jump - code) + JUMP_BYTES);
}

static void take_kernel(const struct image *image, const Elf64_Sym *symbol, const char *name)
{
	const char *begin = strstr(name, "ncclDevKernel_");

	if (!begin || strstr(name, "__device_stub__") || kernel_count == KERNELS)
		return;
	kernels[kernel_count].kernel = (const void *)(image->base + symbol->st_value);
	kernels[kernel_count++].name = begin + strlen("ncclDevKernel_");
}

static bool take_symbol(const struct image *image, const Elf64_Sym *symbol, const char *name)
{
	if (!symbol->st_value)
		return true;
	if (ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT && !strcmp(name, "ncclDevKernelForFunc")) {
		nccl_library.kernel_of_function = (void *const *)(image->base + symbol->st_value);
		nccl_library.functions = symbol->st_size / sizeof(void *);
	}
	if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC)
		return true;
	if (!strncmp(name, "cuda", 4) && name[4] >= 'A' && name[4] <= 'Z')
		return take_function(image, symbol, name);
	take_kernel(image, symbol, name);
	return true;
}

/* The names stay where they are: the file stays mapped. */
static bool take_symbols(const struct image *image)
{
	const Elf64_Ehdr *header = (const void *)image->file;
	const Elf64_Shdr *sections = (const void *)(image->file + header->e_shoff);

	for (int i = 0; i < header->e_shnum; i++) {
		const Elf64_Sym *symbols = (const void *)(image->file + sections[i].sh_offset);
		const char *names = image->file + sections[sections[i].sh_link].sh_offset;

		if (sections[i].sh_type != SHT_SYMTAB)
			continue;
		for (size_t k = 0; k < sections[i].sh_size / sizeof(*symbols); k++)
			if (!take_symbol(image, &symbols[k], names + symbols[k].st_name))
				return false;
	}
	return true;
}

static void take_slot(const struct image *image, const Elf64_Rela *relocation, const char *name)
{
	for (size_t i = 0; i < sizeof(of_libc) / sizeof(*of_libc); i++)
		if (!strcmp(name, of_libc[i].name)) {
			void **slot = (void **)(image->base + relocation->r_offset);

			mprotect((void *)((uintptr_t)slot & ~(PAGE - 1)), PAGE, PROT_READ | PROT_WRITE);
			*slot = of_libc[i].function;
		}
}

/* What the library calls in others goes through slots, which its relocations list. */
static void take_slots(const struct image *image)
{
	const Elf64_Ehdr *header = (const void *)image->file;
	const Elf64_Shdr *sections = (const void *)(image->file + header->e_shoff);

	for (int i = 0; i < header->e_shnum; i++) {
		const Elf64_Rela *relocations = (const void *)(image->file + sections[i].sh_offset);
		const Elf64_Shdr *table = &sections[sections[i].sh_link];

		if (sections[i].sh_type != SHT_RELA || table->sh_type != SHT_DYNSYM)
			continue;
		const Elf64_Sym *symbols = (const void *)(image->file + table->sh_offset);
		const char *names = image->file + sections[table->sh_link].sh_offset;

		for (size_t k = 0; k < sections[i].sh_size / sizeof(*relocations); k++)
			if (ELF64_R_TYPE(relocations[k].r_info) == R_X86_64_JUMP_SLOT)
				take_slot(image, &relocations[k],
					  names + symbols[ELF64_R_SYM(relocations[k].r_info)].st_name);
	}
}

static const Elf64_Shdr *find_section(const struct image *image, const char *name)
{
	const Elf64_Ehdr *header = (const void *)image->file;
	const Elf64_Shdr *sections = (const void *)(image->file + header->e_shoff);
	const char *names = image->file + sections[header->e_shstrndx].sh_offset;

	for (int i = 0; i < header->e_shnum; i++)
		if (!strcmp(names + sections[i].sh_name, name))
			return &sections[i];
	return NULL;
}

/* "NCCL version 2.27.3+cuda12.9", as the library calls itself. */
static bool read_version(const struct image *image)
{
	const Elf64_Shdr *constants = find_section(image, ".rodata");
	int major, minor, patch, cuda;

	if (!constants)
		return false;
	const char *at = image->file + constants->sh_offset, *end = at + constants->sh_size;

	while ((at = memmem(at, (size_t)(end - at), "NCCL version ", 13))) {
		at += 13;
		if (sscanf(at, "%d.%d.%d+cuda%d", &major, &minor, &patch, &cuda) != 4)
			continue;
		nccl_library.version = major * 10000 + minor * 100 + patch;
		nccl_library.cuda_version = cuda * 1000;
		return true;
	}
	return false;
}

/*
 * Leads a mapped libnccl of NVIDIA's to the emulated GPU. Returns its version (22703), or 0 where the file is not
 * mapped, or is no libnccl with the symbols that NVIDIA's wheels have.
 */
CUDA_API int peerwatch_take_over(const char *path)
{
	struct image image = {.path = path};

	if (!map_image(&image) || !read_version(&image) || !take_symbols(&image))
		return 0;
	take_slots(&image);
	return nccl_library.kernel_of_function && kernel_count ? nccl_library.version : 0;
}
