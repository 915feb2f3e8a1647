/* Kernels of a transport code and of a benchmark suite, written from what they compute, to be counted by cachegrind.
 *
 * kripke_*: loops of the Kripke proxy application over zones z, groups g, directions d and moments m, arrays laid out with
 * directions outermost and zones innermost (its default); *_zgd: zones outermost and directions or moments innermost.
 * All others are named as in the RAJA Performance Suite and laid out as there.  Every kernel is one function that is
 * neither inlined nor cloned, so that a profiler's counts by function are its counts; it runs REPEATS times.
 *
 * The program prints a line a kernel: name, iterations, operations on floating-point numbers, bytes (every array element
 * that must be read or written, once), and cycles of the longest chain of operations that wait for each other from one
 * iteration to the next (4 an addition or multiplication, 14 a division), all of one run.
 */
#include <stdio.h>
#include <stdlib.h>

#define KERNEL __attribute__((noinline, noclone)) static void
#define REPEATS 3
#define N 60000
#define ZONES_SIDE 6
#define KZ (ZONES_SIDE * ZONES_SIDE * ZONES_SIDE)
#define KG 8
#define KD 32
#define KM 25
#define SZ 24
#define SG 32
#define SD 64
#define SM 25
#define MATRIX 96
#define GRID 240
#define SIDE 36
#define TAPS 16

static double *a, *b, *c, *d, *x, *y;
static int *index_list, *material;
static volatile double result;
static volatile int found;

/* ---- the code: Kripke ---- */
static double *psi, *phi, *phi_out, *rhs, *ell, *ell_plus, *sigma_s, *sigma_t, *weight, *volume, *fraction;
static double *left, *front, *bottom;

KERNEL kripke_ltimes(void)
{
  for (int m = 0; m < KM; m++)
    for (int dir = 0; dir < KD; dir++)
      for (int g = 0; g < KG; g++) {
        const double factor = ell[m * KD + dir];
        const double *from = psi + (dir * KG + g) * KZ;
        double *to = phi + (m * KG + g) * KZ;
        for (int z = 0; z < KZ; z++) to[z] += factor * from[z];
      }
}

KERNEL kripke_lplustimes(void)
{
  for (int dir = 0; dir < KD; dir++)
    for (int m = 0; m < KM; m++)
      for (int g = 0; g < KG; g++) {
        const double factor = ell_plus[dir * KM + m];
        const double *from = phi_out + (m * KG + g) * KZ;
        double *to = rhs + (dir * KG + g) * KZ;
        for (int z = 0; z < KZ; z++) to[z] += factor * from[z];
      }
}

KERNEL kripke_ltimes_zgd(void)
{
  for (int z = 0; z < KZ; z++)
    for (int g = 0; g < KG; g++)
      for (int m = 0; m < KM; m++) {
        double sum = phi[(z * KG + g) * KM + m];
        for (int dir = 0; dir < KD; dir++) sum += ell[m * KD + dir] * psi[(z * KG + g) * KD + dir];
        phi[(z * KG + g) * KM + m] = sum;
      }
}

KERNEL kripke_lplustimes_zgd(void)
{
  for (int z = 0; z < KZ; z++)
    for (int g = 0; g < KG; g++)
      for (int dir = 0; dir < KD; dir++) {
        double sum = rhs[(z * KG + g) * KD + dir];
        for (int m = 0; m < KM; m++) sum += ell_plus[dir * KM + m] * phi_out[(z * KG + g) * KM + m];
        rhs[(z * KG + g) * KD + dir] = sum;
      }
}

/* Each zone scatters from every group into every group with the cross section of its material. */
KERNEL kripke_scattering(void)
{
  for (int m = 0; m < KM; m++) {
    const int order = m / 7;
    for (int g = 0; g < KG; g++)
      for (int from = 0; from < KG; from++) {
        double *to = phi_out + (m * KG + g) * KZ;
        const double *source = phi + (m * KG + from) * KZ;
        for (int z = 0; z < KZ; z++)
          to[z] += sigma_s[((material[z] * 4 + order) * KG + g) * KG + from] * source[z] * fraction[z];
      }
  }
}

/* Zones of one material radiate into the first moment. */
KERNEL kripke_source(void)
{
  for (int round = 0; round < 40; round++)
    for (int g = 0; g < KG; g++) {
      double *to = phi_out + g * KZ;
      for (int z = 0; z < KZ; z++)
        if (material[z] == 2) to[z] += 0.5 * fraction[z];
    }
}

/* Diamond difference: a zone needs the faces that its neighbours on the left, in front and below computed. */
KERNEL kripke_sweep(void)
{
  for (int dir = 0; dir < KD; dir++)
    for (int g = 0; g < KG; g++) {
      double *faces_k = bottom + (dir * KG + g) * ZONES_SIDE * ZONES_SIDE;
      double *faces_j = front + (dir * KG + g) * ZONES_SIDE * ZONES_SIDE;
      double *faces_i = left + (dir * KG + g) * ZONES_SIDE * ZONES_SIDE;
      const double cos_i = 2.0 * weight[dir], cos_j = 1.5 * weight[dir], cos_k = 1.2 * weight[dir];
      for (int k = 0; k < ZONES_SIDE; k++)
        for (int j = 0; j < ZONES_SIDE; j++)
          for (int i = 0; i < ZONES_SIDE; i++) {
            const int z = (k * ZONES_SIDE + j) * ZONES_SIDE + i;
            double *face_i = faces_i + k * ZONES_SIDE + j;
            double *face_j = faces_j + k * ZONES_SIDE + i;
            double *face_k = faces_k + j * ZONES_SIDE + i;
            const double inside = (rhs[(dir * KG + g) * KZ + z] + *face_i * cos_i + *face_j * cos_j + *face_k * cos_k)
                                  / (cos_i + cos_j + cos_k + sigma_t[g * KZ + z]);
            psi[(dir * KG + g) * KZ + z] = inside;
            *face_i = 2.0 * inside - *face_i;
            *face_j = 2.0 * inside - *face_j;
            *face_k = 2.0 * inside - *face_k;
          }
    }
}

KERNEL kripke_population(void)
{
  double sum = 0.0;
  for (int round = 0; round < 8; round++)
    for (int dir = 0; dir < KD; dir++)
      for (int g = 0; g < KG; g++) {
        const double *from = psi + (dir * KG + g) * KZ;
        for (int z = 0; z < KZ; z++) sum += weight[dir] * from[z] * volume[z];
      }
  result = sum;
}

/* ---- the suite ---- */
KERNEL stream_copy(void) { for (int i = 0; i < N; i++) c[i] = a[i]; }
KERNEL stream_mul(void) { for (int i = 0; i < N; i++) b[i] = 0.4 * c[i]; }
KERNEL stream_add(void) { for (int i = 0; i < N; i++) c[i] = a[i] + b[i]; }
KERNEL stream_triad(void) { for (int i = 0; i < N; i++) a[i] = b[i] + 0.4 * c[i]; }

KERNEL stream_dot(void)
{
  double sum = 0.0;
  for (int i = 0; i < N; i++) sum += a[i] * b[i];
  result = sum;
}

KERNEL basic_daxpy(void) { for (int i = 0; i < N; i++) y[i] += 0.4 * x[i]; }

KERNEL basic_muladdsub(void)
{
  for (int i = 0; i < N; i++) {
    a[i] = x[i] * y[i];
    b[i] = x[i] + y[i];
    c[i] = x[i] - y[i];
  }
}

KERNEL basic_reduce3_int(void)
{
  int sum = 0, least = 1 << 30, most = -(1 << 30);
  for (int i = 0; i < N; i++) {
    const int value = index_list[i];
    sum += value;
    least = value < least ? value : least;
    most = value > most ? value : most;
  }
  found = sum + least + most;
}

KERNEL basic_pi_reduce(void)
{
  const double width = 1.0 / N;
  double sum = 0.0;
  for (int i = 0; i < N; i++) {
    const double at = (i + 0.5) * width;
    sum += width / (1.0 + at * at);
  }
  result = 4.0 * sum;
}

KERNEL basic_trap_int(void)
{
  double sum = 0.0;
  const double width = 0.6 / N;
  for (int i = 0; i < N; i++) {
    const double at = 0.1 + i * width, far = at - 0.7, wide = 0.5 + at;
    sum += 1.0 / (far * far + wide * wide + 0.3);
  }
  result = sum * width;
}

KERNEL basic_indexlist(void)
{
  int count = 0;
  for (int i = 0; i < N; i++)
    if (x[i] < 0.0) index_list[count++] = i;
  found = count;
}

KERNEL basic_if_quad(void)
{
  for (int i = 0; i < N; i++) {
    const double under = b[i] * b[i] - 4.0 * a[i] * c[i];
    if (under >= 0.0) {
      const double root = __builtin_sqrt(under), half = 0.5 / a[i];
      x[i] = (root - b[i]) * half;
      y[i] = (-root - b[i]) * half;
    } else {
      x[i] = 0.0;
      y[i] = 0.0;
    }
  }
}

KERNEL lcals_tridiag_elim(void) { for (int i = 1; i < N; i++) x[i] = a[i] * (b[i] - x[i - 1]); }

KERNEL lcals_gen_lin_recur(void)
{
  double carried = 0.1;
  for (int i = 0; i < N; i++) {
    c[i] = a[i] + carried * b[i];
    carried = c[i] - carried;
  }
}

KERNEL lcals_first_diff(void) { for (int i = 0; i < N - 1; i++) x[i] = y[i + 1] - y[i]; }
KERNEL lcals_hydro_1d(void) { for (int i = 0; i < N - 12; i++) x[i] = 0.1 + y[i] * (0.2 * a[i + 10] + 0.3 * a[i + 11]); }

KERNEL polybench_gemm(void)
{
  for (int i = 0; i < MATRIX; i++)
    for (int j = 0; j < MATRIX; j++) {
      double sum = 0.2 * c[i * MATRIX + j];
      for (int k = 0; k < MATRIX; k++) sum += 1.1 * a[i * MATRIX + k] * b[k * MATRIX + j];
      c[i * MATRIX + j] = sum;
    }
}

KERNEL polybench_atax(void)
{
  for (int j = 0; j < GRID; j++) y[j] = 0.0;
  for (int i = 0; i < GRID; i++) {
    double sum = 0.0;
    for (int j = 0; j < GRID; j++) sum += a[i * GRID + j] * x[j];
    for (int j = 0; j < GRID; j++) y[j] += a[i * GRID + j] * sum;
  }
}

KERNEL polybench_jacobi_2d(void)
{
  for (int i = 1; i < GRID - 1; i++)
    for (int j = 1; j < GRID - 1; j++)
      b[i * GRID + j] = 0.2 * (a[i * GRID + j] + a[i * GRID + j - 1] + a[i * GRID + j + 1] + a[(i - 1) * GRID + j]
                               + a[(i + 1) * GRID + j]);
}

KERNEL apps_fir(void)
{
  for (int i = 0; i < N - TAPS; i++) {
    double sum = 0.0;
    for (int j = 0; j < TAPS; j++) sum += d[j] * x[i + j];
    y[i] = sum;
  }
}

/* The volume of a hexahedron of eight corners, by three products of its diagonals. */
KERNEL apps_vol3d(void)
{
  const int row = SIDE, plane = SIDE * SIDE;
  for (int z = 0; z + 1 < SIDE; z++)
    for (int v = 0; v + 1 < SIDE; v++)
      for (int u = 0; u + 1 < SIDE; u++) {
        const int i = z * plane + v * row + u;
        const int corner[8] = {i, i + 1, i + row, i + row + 1, i + plane, i + plane + 1, i + plane + row,
                               i + plane + row + 1};
        double p[8], q[8], r[8];
        for (int n = 0; n < 8; n++) {
          p[n] = a[corner[n]];
          q[n] = b[corner[n]];
          r[n] = c[corner[n]];
        }
        const double lx = p[7] - p[0], ly = q[7] - q[0], lz = r[7] - r[0];
        double sum = 0.0;
        for (int n = 0; n < 3; n++) {
          const int one = n == 0 ? 1 : n == 1 ? 2 : 4, two = n == 0 ? 3 : n == 1 ? 6 : 5;
          const double ux = p[two] - p[one], uy = q[two] - q[one], uz = r[two] - r[one];
          const double wx = p[7 - one] - p[0], wy = q[7 - one] - q[0], wz = r[7 - one] - r[0];
          sum += lx * (uy * wz - uz * wy) + ly * (uz * wx - ux * wz) + lz * (ux * wy - uy * wx);
        }
        x[i] = sum / 12.0;
      }
}

KERNEL apps_ltimes(void)
{
  for (int z = 0; z < SZ; z++)
    for (int g = 0; g < SG; g++)
      for (int m = 0; m < SM; m++) {
        double sum = phi[m + (g + z * SG) * SM];
        for (int dir = 0; dir < SD; dir++) sum += ell[dir + m * SD] * psi[dir + (g + z * SG) * SD];
        phi[m + (g + z * SG) * SM] = sum;
      }
}

KERNEL apps_ltimes_noview(void)
{
  for (int z = 0; z < SZ; z++)
    for (int g = 0; g < SG; g++)
      for (int m = 0; m < SM; m++)
        for (int dir = 0; dir < SD; dir++)
          phi[m + g * SM + z * SM * SG] += ell[dir + m * SD] * psi[dir + g * SD + z * SD * SG];
}

struct kernel {
  const char *name;
  void (*run)(void);
  double iterations, flops, bytes, chain;
};

#define KPSI ((double)KD * KG * KZ)
#define KPHI ((double)KM * KG * KZ)
#define SPSI ((double)SD * SG * SZ)
#define SPHI ((double)SM * SG * SZ)
#define CELLS ((double)(SIDE - 1) * (SIDE - 1) * (SIDE - 1))
#define INNER ((double)(GRID - 2) * (GRID - 2))
#define CUBE ((double)MATRIX * MATRIX * MATRIX)

static const struct kernel kernels[] = {
  {"kripke_ltimes", kripke_ltimes, KM * KPSI, 2 * KM * KPSI, 8 * (KPSI + 2 * KPHI + KM * KD), 0},
  {"kripke_lplustimes", kripke_lplustimes, KM * KPSI, 2 * KM * KPSI, 8 * (2 * KPSI + KPHI + KM * KD), 0},
  {"kripke_ltimes_zgd", kripke_ltimes_zgd, KM * KPSI, 2 * KM * KPSI, 8 * (KPSI + 2 * KPHI + KM * KD), 4 * KM * KPSI},
  {"kripke_lplustimes_zgd", kripke_lplustimes_zgd, KM * KPSI, 2 * KM * KPSI, 8 * (2 * KPSI + KPHI + KM * KD),
   4 * KM * KPSI},
  {"kripke_scattering", kripke_scattering, KG * KPHI, 3 * KG * KPHI, 8 * 3 * KPHI + 12 * KZ, 0},
  {"kripke_source", kripke_source, 40.0 * KG * KZ, 2 * 40.0 * KG * KZ / 3, 8 * 2 * KG * KZ / 3.0 + 12 * KZ, 0},
  {"kripke_sweep", kripke_sweep, KPSI, 20 * KPSI, 8 * (2 * KPSI + KG * KZ + 6 * KPSI / ZONES_SIDE), 34 * KPSI},
  {"kripke_population", kripke_population, 8 * KPSI, 3 * 8 * KPSI, 8 * 8 * KPSI + 8 * KZ, 4 * 8 * KPSI},
  {"Stream_COPY", stream_copy, N, 0, 16.0 * N, 0},
  {"Stream_MUL", stream_mul, N, 1.0 * N, 16.0 * N, 0},
  {"Stream_ADD", stream_add, N, 1.0 * N, 24.0 * N, 0},
  {"Stream_TRIAD", stream_triad, N, 2.0 * N, 24.0 * N, 0},
  {"Stream_DOT", stream_dot, N, 2.0 * N, 16.0 * N, 4.0 * N},
  {"Basic_DAXPY", basic_daxpy, N, 2.0 * N, 24.0 * N, 0},
  {"Basic_MULADDSUB", basic_muladdsub, N, 3.0 * N, 40.0 * N, 0},
  {"Basic_REDUCE3_INT", basic_reduce3_int, N, 0, 4.0 * N, 1.0 * N},
  {"Basic_PI_REDUCE", basic_pi_reduce, N, 6.0 * N, 8, 4.0 * N},
  {"Basic_TRAP_INT", basic_trap_int, N, 10.0 * N, 8, 4.0 * N},
  {"Basic_INDEXLIST", basic_indexlist, N, 0, 10.0 * N, 1.0 * N},
  {"Basic_IF_QUAD", basic_if_quad, N, 8.0 * N, 40.0 * N, 0},
  {"Lcals_TRIDIAG_ELIM", lcals_tridiag_elim, N, 2.0 * N, 24.0 * N, 8.0 * N},
  {"Lcals_GEN_LIN_RECUR", lcals_gen_lin_recur, N, 3.0 * N, 24.0 * N, 12.0 * N},
  {"Lcals_FIRST_DIFF", lcals_first_diff, N, 1.0 * N, 16.0 * N, 0},
  {"Lcals_HYDRO_1D", lcals_hydro_1d, N, 5.0 * N, 24.0 * N, 0},
  {"PolyBench_GEMM", polybench_gemm, CUBE, 3 * CUBE, 8.0 * 4 * MATRIX * MATRIX, 4 * CUBE},
  {"PolyBench_ATAX", polybench_atax, 2.0 * GRID * GRID, 4.0 * GRID * GRID, 8.0 * GRID * (GRID + 3), 4.0 * GRID * GRID},
  {"PolyBench_JACOBI_2D", polybench_jacobi_2d, INNER, 5 * INNER, 16 * INNER, 0},
  {"Apps_FIR", apps_fir, 1.0 * TAPS * N, 2.0 * TAPS * N, 16.0 * N, 0},
  {"Apps_VOL3D", apps_vol3d, CELLS, 66 * CELLS, 32 * CELLS, 0},
  {"Apps_LTIMES", apps_ltimes, SM * SPSI, 2 * SM * SPSI, 8 * (SPSI + 2 * SPHI + SM * SD), 4 * SM * SPSI},
  {"Apps_LTIMES_NOVIEW", apps_ltimes_noview, SM * SPSI, 2 * SM * SPSI, 8 * (SPSI + 2 * SPHI + SM * SD), 4 * SM * SPSI},
};

static unsigned long state = 12345;

static double drawn(void)
{
  state = state * 6364136223846793005ul + 1442695040888963407ul;
  return (double)(state >> 40) / (double)(1ul << 24) - 0.5;
}

static double *doubles(size_t count)
{
  double *made = malloc(count * sizeof *made);
  if (!made) exit(1);
  for (size_t i = 0; i < count; i++) made[i] = drawn();
  return made;
}

static double *positive(size_t count)
{
  double *made = doubles(count);
  for (size_t i = 0; i < count; i++) made[i] = 0.6 + made[i];
  return made;
}

int main(void)
{
  const size_t most = SPSI > KPSI ? SPSI : KPSI;
  a = doubles(N), b = doubles(N), c = doubles(N), d = doubles(N), x = doubles(N), y = doubles(N);
  psi = doubles(most), phi = doubles(most), phi_out = doubles(most), rhs = doubles(most);
  ell = doubles(SM * SD), ell_plus = doubles(SM * SD), sigma_s = positive(3 * 4 * KG * KG), sigma_t = positive(KG * KZ);
  weight = positive(KD), volume = positive(KZ), fraction = positive(KZ);
  left = doubles(KD * KG * ZONES_SIDE * ZONES_SIDE), front = doubles(KD * KG * ZONES_SIDE * ZONES_SIDE);
  bottom = doubles(KD * KG * ZONES_SIDE * ZONES_SIDE);
  index_list = malloc(N * sizeof *index_list), material = malloc(KZ * sizeof *material);
  if (!index_list || !material) return 1;
  for (int i = 0; i < N; i++) index_list[i] = (int)(1000 * drawn());
  for (int z = 0; z < KZ; z++) material[z] = (z / 3 * 7) % 3;
  for (size_t n = 0; n < sizeof kernels / sizeof *kernels; n++) {
    for (int repeat = 0; repeat < REPEATS; repeat++) kernels[n].run();
    printf("%s %.17g %.17g %.17g %.17g\n", kernels[n].name, kernels[n].iterations * REPEATS,
           kernels[n].flops * REPEATS, kernels[n].bytes * REPEATS, kernels[n].chain * REPEATS);
  }
  return 0;
}
